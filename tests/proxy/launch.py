"""Starting a replica exactly as `deploy/up` does, but on a configuration of the tests."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from plugins.config import provider_variables, settings
from plugins.setup import proxy_process
from plugins.setup.data_folder import prepare, write_private
from tests.proxy.harness import Proxy
from tests.proxy.models import PROVIDER_KEYS

EVENTUALLY = 15.0  # seconds
#: What would steer a proxy, a provider's client or a database.
_STEERING = ("LITELLM", "WICKETGATE", "LEDGER", "PG", "DATABASE", "OPENAI", "ANTHROPIC")
#: LiteLLM's pauses between two tries, in seconds; the tests need not sit them out.
_HASTE = {"INITIAL_RETRY_DELAY": "0.02", "MAX_RETRY_DELAY": "0.05", "JITTER": "0.01"}


def eventually(holds: Callable[[], bool], limit: float = EVENTUALLY) -> None:
    """Wait until *holds* returns true."""
    deadline = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.05)


def clean_environment() -> dict[str, str]:
    """Return the environment of the tests without what would steer a proxy."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_STEERING) and name not in provider_variables.NAMES
    }
    return {**kept, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def proxy(name: str, config: Path, folder: Path, ledger_url: str) -> Proxy:
    """Start a replica named *name* on *config*; its files are below *folder*."""
    own = folder / name
    prepare(own)
    given = {**clean_environment(), **PROVIDER_KEYS, **_HASTE}
    rendered = own / "rendered" / "litellm_config.yaml"
    rendered.parent.mkdir()
    write_private(rendered, settings.render(config, given, []).text)
    metrics_port = free_port()
    env = proxy_process.environment(given, own, config, ledger_url, metrics_port)
    port = free_port()
    command = proxy_process.command(rendered, "127.0.0.1", port, workers=1)
    return Proxy(name, command, env, port, folder, metrics_port)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
