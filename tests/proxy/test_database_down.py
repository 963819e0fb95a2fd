"""O-25: while Postgres is away calls are refused at once, and served again when it is back."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.proxy import launch
from tests.proxy.calls import chat, refused
from tests.proxy.models import NOTHING

#: What a driver's error would give away.
TELLING = ["127.0.0.1", "localhost", "psycopg", "connection", "postgres", "wicketgate:", "5432"]


def told_nothing(text: str) -> bool:
    return not [word for word in TELLING if word in text.lower()]


def unavailable(proxy, key, *, within: float = 1.0) -> None:
    """Assert that one call is refused as `ledger_unavailable`, in *within* seconds."""
    started = time.monotonic()
    answer = proxy.post("/v1/chat/completions", key, chat("cloud-eu"))
    elapsed = time.monotonic() - started
    refused(answer, 503, "ledger_unavailable")
    assert answer.headers["retry-after"] == "5"
    assert told_nothing(answer.text + str(answer.headers))
    assert elapsed < within


@pytest.fixture(name="acme", scope="module")
def _acme(new_tenant):
    return new_tenant("acme", models=["cloud-eu"])


@pytest.fixture(name="keys")
def _keys(replicas, office, acme):
    """(a) a key that no replica has seen used, (b) one that was used a second ago, (c) none."""
    unseen = office.key(acme.name)
    time.sleep(1)
    for proxy in replicas:
        assert proxy.post("/v1/chat/completions", acme.key, chat("cloud-eu")).status_code == 200
    return unseen.key, acme.key, "sk-wg-" + "x" * 43


def test_o25_postgres_stops_and_starts_again(replicas, postgres, providers, keys, start):
    """Refused within a second while it is down; served again without a restart.

    A replica that starts meanwhile refuses likewise, and serves when the database is there.
    """
    unseen, used, unknown = keys
    providers.reset()
    postgres.stop()
    try:
        time.sleep(1)
        for proxy in replicas:
            for key in keys:
                unavailable(proxy, key)
            assert proxy.get("/health/readiness", None).status_code == 503
            assert proxy.get("/health/liveness", None).status_code == 200
            refused(proxy.get("/v1/models", used), 503, "ledger_unavailable")
            refused(proxy.post("/v1/messages", used, chat("cloud-eu")), 503, "ledger_unavailable")
        late = start("R")
        late.wait_until(200, "/health/liveness")
        late.wait_until(503)
        for key in keys:
            unavailable(late, key)
        assert providers.seen() == NOTHING
    finally:
        postgres.start()
    for proxy in (*replicas, late):
        launch.eventually(
            lambda proxy=proxy: proxy.get("/health/readiness", None).status_code == 200
        )
        for key in (unseen, used):
            answer = proxy.post("/v1/chat/completions", key, chat("cloud-eu"))
            assert answer.status_code == 200
        refused(
            proxy.post("/v1/chat/completions", unknown, chat("cloud-eu")), 401, "invalid_api_key"
        )
        log = proxy.output()
        assert not [word for word in (postgres.url, postgres.url.rpartition("@")[2]) if word in log]
        assert "psycopg" not in log
    late.stop()


def backends(postmaster: int) -> list[int]:
    """Return the server process and its children."""
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    return [postmaster, *map(int, children)]


def test_postgres_hangs(replicas, postgres, providers, keys):
    """A database that neither answers nor hangs up is as good as down."""
    providers.reset()
    frozen = backends(postgres.pid)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(2)
        for proxy in replicas:
            for key in keys:
                unavailable(proxy, key)
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    assert providers.seen() == NOTHING
    for proxy in replicas:
        launch.eventually(
            lambda proxy=proxy: (
                proxy.post("/v1/chat/completions", keys[1], chat("cloud-eu")).status_code == 200
            )
        )


def test_a_block_during_an_outage_holds_afterwards(replicas, postgres, office, acme):
    """What changed while a replica could not look is known before it serves again."""
    key = office.key(acme.name)
    for proxy in replicas:
        proxy.wait_for_key(key.key)
    frozen = [pid for pid in backends(postgres.pid) if pid != postgres.pid]
    office("key", "block", key.key_id)
    postgres.stop()
    time.sleep(0.5)
    postgres.start()
    assert frozen
    for proxy in replicas:
        launch.eventually(
            lambda proxy=proxy: proxy.get("/health/readiness", None).status_code == 200
        )
        refused(
            proxy.post("/v1/chat/completions", key.key, chat("cloud-eu")), 401, "invalid_api_key"
        )
