"""One database, four fake providers and two replicas, shared by all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plugins.setup.postgres import EmbeddedPostgres
from tests.proxy import launch
from tests.proxy.harness import Proxy
from tests.proxy.models import Providers, write_config
from tests.proxy.office import Office, Tenant
from tests.proxy.treasury import Treasury

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proxy")


@pytest.fixture(scope="session")
def providers() -> Iterator[Providers]:
    everyone = Providers()
    with everyone.a, everyone.b, everyone.l, everyone.x:
        yield everyone


@pytest.fixture(scope="session")
def postgres(folder: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(folder / "data", fsync=False) as server:
        yield server


@pytest.fixture(scope="session")
def office(postgres: EmbeddedPostgres) -> Office:
    """The admin commands, on a migrated database."""
    desk = Office(postgres.url)
    desk("db", "migrate")
    return desk


@pytest.fixture(scope="session")
def config(folder: Path, providers: Providers) -> Path:
    return write_config(ROOT / "litellm_config.yaml", folder / "litellm_config.yaml", providers)


@pytest.fixture(scope="session")
def start(
    config: Path, folder: Path, postgres: EmbeddedPostgres
) -> Iterator[Callable[[str], Proxy]]:
    """Start a replica by name; it is not ready yet. All are stopped at the end."""
    started: list[Proxy] = []

    def start_one(name: str) -> Proxy:
        proxy = launch.proxy(name, config, folder, postgres.url)
        started.append(proxy)
        return proxy

    yield start_one
    for proxy in started:
        proxy.stop()


@pytest.fixture(scope="session")
def replicas(office: Office, start: Callable[[str], Proxy]) -> tuple[Proxy, Proxy]:
    """P and Q, both ready."""
    both = start("P"), start("Q")
    for proxy in both:
        proxy.wait_until(200)
    return both


@pytest.fixture(scope="session")
def p(replicas: tuple[Proxy, Proxy]) -> Proxy:
    return replicas[0]


@pytest.fixture(scope="session")
def q(replicas: tuple[Proxy, Proxy]) -> Proxy:
    return replicas[1]


@pytest.fixture(scope="session")
def treasury(postgres: EmbeddedPostgres) -> Treasury:
    return Treasury(postgres.url)


@pytest.fixture(autouse=True)
def _fresh_journals(request: pytest.FixtureRequest, providers: Providers) -> Iterator[None]:
    """Begin each test with empty journals; end it with the attacker not having been called."""
    providers.reset()
    yield
    assert providers.x.connections == 0
    providers.reset()


NewTenant = Callable[..., Tenant]


@pytest.fixture(scope="session")
def new_tenant(office: Office, replicas: tuple[Proxy, Proxy]) -> NewTenant:
    """Add a tenant as `Office.tenant` does, and wait until both replicas know its key."""

    def make(name: str, **grants: object) -> Tenant:
        tenant = office.tenant(name, **grants)  # type: ignore[arg-type]
        for proxy in replicas:
            proxy.wait_for_key(tenant.key)
        return tenant

    return make
