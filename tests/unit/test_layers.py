"""The direction of imports, and what LiteLLM demands of a door."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from litellm.integrations.custom_logger import CustomLogger

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "plugins"
DOORS = {"tenant_grants", "router_hooks", "budget_hooks"}

#: Which of our modules each ring may import; a module not named here belongs to a package.
RINGS = {
    "policy": {"policy"},
    "ledger": {"policy", "ledger"},
    "telemetry": {"telemetry"},
    "config": {"policy", "config"},
    "meter": {"policy"},
    "account": {"policy", "meter"},
    "books": {"policy", "ledger", "account", "logs", "telemetry"},
    "inflight": {"policy", "account"},
    "logs": set(),
    "seam": {"policy", "inflight", "logs"},
    "tokens": {"policy", "seam", "tokens"},
    "keeper": {"policy", "ledger"},
    "events": set(),
    "entrance": {"policy", "ledger", "account", "books", "inflight", "keeper", "tokens"},
    "answer": {"policy", "inflight", "events", "telemetry"},
    "gate": {"policy", "inflight", "entrance", "answer", "logs", "telemetry"},
    "runtime": {
        *("policy", "ledger", "telemetry", "config", "inflight", "logs", "seam"),
        *("keeper", "entrance", "gate", "account", "books", "tokens"),
    },
    "tenant_grants": {"policy", "inflight", "runtime", "seam", "telemetry"},
    "router_hooks": {"policy", "inflight", "runtime", "seam", "telemetry"},
    "budget_hooks": {"policy", "account", "inflight", "runtime", "seam", "telemetry"},
}
#: Commands: they may import what they like, except a door.
COMMANDS = {"admin", "setup"}


def imported(path: Path) -> Iterator[str]:
    """Yield dotted names: `datetime.UTC`, `plugins.policy.grants.Grants`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def ring_of(path: Path) -> str:
    return path.relative_to(PLUGINS).parts[0].removesuffix(".py")


def ours(path: Path) -> set[str]:
    names = (name.split(".") for name in imported(path))
    return {parts[1] for parts in names if parts[0] == "plugins" and len(parts) > 1}


FILES = sorted(path for path in PLUGINS.rglob("*.py") if path != PLUGINS / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PLUGINS)))
def test_imports_point_one_way(path: Path) -> None:
    """Each module imports only from rings further in, and nobody imports a door."""
    ring = ring_of(path)

    assert not ours(path) & DOORS - {ring}
    if ring not in COMMANDS:
        assert ours(path) <= RINGS[ring]


@pytest.mark.parametrize("path", sorted((PLUGINS / "policy").glob("*.py")), ids=lambda p: p.stem)
def test_policy_needs_only_the_standard_library(path: Path) -> None:
    """The decisions can be read, tested and reused without LiteLLM or Postgres."""
    roots = {name.split(".")[0] for name in imported(path)}

    assert roots - {"plugins"} <= sys.stdlib_module_names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PLUGINS)))
def test_only_the_seam_and_the_doors_know_litellm(path: Path) -> None:
    """A change in LiteLLM is met in one place."""
    roots = {name.split(".")[0] for name in imported(path)}

    if ring_of(path) not in {*DOORS, "seam"}:
        assert not roots & {"litellm", "fastapi"}
    if ring_of(path) not in {"ledger", "keeper", *COMMANDS}:
        assert not roots & {"sqlalchemy", "psycopg"}


def door_classes() -> list[type[CustomLogger]]:
    """Load the doors in a process where the startup hook did not run, by naming a stand-in."""
    from plugins import runtime

    present = runtime._runtime
    runtime._runtime = runtime.Runtime(catalog=None, deployments={}, max_attempts=4)  # type: ignore[arg-type]
    try:
        from plugins.router_hooks import RouterHooks
        from plugins.tenant_grants import TenantGrants
    finally:
        runtime._runtime = present
    return [TenantGrants, RouterHooks]


@pytest.mark.parametrize("door", door_classes(), ids=lambda door: door.__name__)
def test_each_door_spells_out_its_hooks(door: type[CustomLogger]) -> None:
    """LiteLLM looks for some hooks in the class's own namespace only."""
    assert door.__bases__ == (CustomLogger,)
    assert [name for name in vars(door) if name.startswith("async_")]


@pytest.mark.parametrize(
    "hook",
    [
        pytest.param((door, name), id=f"{door.__name__}.{name}")
        for door in door_classes()
        for name in vars(door)
        if name.startswith("async_")
    ],
)
def test_hooks_take_what_litellm_passes(hook: tuple[type[CustomLogger], str]) -> None:
    """Our overrides have the parameters of the installed LiteLLM, by name and order."""
    door, name = hook
    mine = list(inspect.signature(getattr(door, name)).parameters)
    theirs = list(inspect.signature(getattr(CustomLogger, name)).parameters)

    assert mine == theirs


@pytest.mark.parametrize("door", sorted(DOORS))
def test_a_door_without_the_startup_hook_stops_litellm(door: str) -> None:
    """A gateway started without our hook must not come up half guarded."""
    result = subprocess.run(
        [sys.executable, "-c", f"import plugins.{door}"],
        cwd=ROOT,
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert result.returncode == 1
    assert result.stderr.strip().splitlines()[-1] == (
        "plugins.runtime.NotStarted: A door was loaded in a worker whose startup hook did not "
        "run. Start LiteLLM with LITELLM_WORKER_STARTUP_HOOKS=plugins.runtime:start in its "
        "environment."
    )
