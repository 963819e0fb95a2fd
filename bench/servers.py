"""The two proxies that are compared, and what they stand on."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from plugins.admin import cli
from plugins.config import provider_variables
from plugins.setup import proxy_process
from plugins.setup.child_process import at_start
from plugins.setup.data_folder import ROOT, prepare
from plugins.setup.postgres import free_port

_STEERING = ("LITELLM", "WICKETGATE", "LEDGER", "PG", "DATABASE", "OPENAI", "ANTHROPIC")
_START_LIMIT = 150.0  # seconds
#: What the gateway's environment has beyond the one that stock LiteLLM gets.
_OURS = (
    *("LEDGER_URL", "LITELLM_WORKER_STARTUP_HOOKS", "PROMETHEUS_MULTIPROC_DIR"),
    *("WICKETGATE_CONFIG", "WICKETGATE_METRICS_PORT"),
)


@dataclass(frozen=True, slots=True)
class Server:
    """A proxy that serves: where, with which key, and its process."""

    name: str
    port: int
    key: str
    pid: int

    def cpu(self) -> float:
        """Return the seconds of CPU that its processes have used."""
        return cpu_of_tree(self.pid)


def cpu_of_tree(pid: int) -> float:
    """Return the seconds of CPU used by *pid*, the processes below it, and those that ended."""
    return sum(_cpu_seconds(process) for process in family(pid))


def _cpu_seconds(pid: int) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    # utime, stime, and both of the children that have ended: a child's end loses nothing.
    return sum(map(int, stat.rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """Return *pid* and the processes below it."""
    found = [pid]
    for known in found:
        for task in Path("/proc").glob(f"{known}/task/*/children"):
            with contextlib.suppress(OSError):
                found.extend(map(int, task.read_text(encoding="ascii").split()))
    return found


@contextmanager
def provider() -> Iterator[int]:
    """Run the fake provider in a process of its own and give its port."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.fake", str(port)], cwd=ROOT, preexec_fn=at_start()
    )
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.terminate()
        process.wait()


@contextmanager
def bare(folder: Path, provider_port: int) -> Iterator[Server]:
    """Run LiteLLM as it comes: its own key check, the same settings, none of our hooks."""
    master = f"sk-{secrets.token_hex(16)}"
    document = _document(provider_port)
    for name in ("custom_auth", "custom_auth_run_common_checks"):
        document["general_settings"].pop(name, None)
    for name in ("callbacks", "enable_post_custom_auth_checks"):
        document["litellm_settings"].pop(name, None)
    document.pop("wicketgate", None)
    config = _written(folder / "bare.yaml", document)
    given = {**_clean(), "LITELLM_MASTER_KEY": master}
    own = folder / "bare"
    prepare(own)
    env = proxy_process.environment(given, own, config, "", 0)
    for name in _OURS:
        del env[name]
    with _running("bare", config, env, folder, master) as server:
        yield server


@contextmanager
def gateway(folder: Path, provider_port: int, ledger_url: str) -> Iterator[Server]:
    """Run the gateway with everything on: a tenant, its grants, a money and a token budget."""
    config = _written(folder / "gateway.yaml", _document(provider_port))
    admin(ledger_url, "tenant", "add", "bench")
    admin(
        *(ledger_url, "grant", "add", "--tenant", "bench"),
        *("--model", "bench", "--provider", "*", "--region", "*"),
    )
    for limit in (("--usd", "1000000"), ("--tokens", "1000000000000")):
        admin(ledger_url, "budget", "set", "--tenant", "bench", *limit, "--window", "day")
    key = admin(ledger_url, "key", "issue", "--tenant", "bench")["key"]
    own = folder / "gateway"
    prepare(own)
    env = proxy_process.environment(_clean(), own, config, ledger_url, free_port())
    with _running("gateway", config, env, folder, key) as server:
        yield server


def admin(ledger_url: str, *arguments: str) -> Any:
    """Run an admin command on the database and return what it prints."""
    printed, told = io.StringIO(), io.StringIO()
    before = os.environ.get("LEDGER_URL")
    os.environ["LEDGER_URL"] = ledger_url
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
            code = cli.main([*arguments, "--json"])
    finally:
        if before is None:
            del os.environ["LEDGER_URL"]
        else:
            os.environ["LEDGER_URL"] = before
    if code != 0:
        raise RuntimeError(f"admin {' '.join(arguments)}: {told.getvalue()}")
    return json.loads(printed.getvalue())


def _document(provider_port: int) -> dict[str, Any]:
    """Return the shipped configuration with one deployment, at the fake provider."""
    document: dict[str, Any] = yaml.safe_load(
        (ROOT / "litellm_config.yaml").read_text(encoding="utf-8")
    )
    entry = {
        "model_name": "bench",
        "litellm_params": {
            "model": "openai/m",
            "api_base": f"http://127.0.0.1:{provider_port}/v1",
            "api_key": "none",
        },
        "model_info": {
            "id": "bench-1",
            "provider": "fake",
            "region": "here",
            "input_cost_per_token": 0.000001,
            "output_cost_per_token": 0.000002,
            "max_input_tokens": 128_000,
            "max_output_tokens": 4_096,
            "tokenizer": "o200k_base",
        },
    }
    document["model_list"] = [entry]
    document["router_settings"].pop("fallbacks", None)
    return document


def _written(path: Path, document: Mapping[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def _clean() -> dict[str, str]:
    """Return our environment without what would steer a proxy."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_STEERING) and name not in provider_variables.NAMES
    }


@contextmanager
def _running(
    name: str, config: Path, env: Mapping[str, str], folder: Path, key: str
) -> Iterator[Server]:
    port = free_port()
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            proxy_process.command(config, "127.0.0.1", port, workers=1),
            env=dict(env), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            preexec_fn=at_start(),
        )  # fmt: skip
    try:
        deadline = time.monotonic() + _START_LIMIT
        while not proxy_process.is_ready("127.0.0.1", port):
            if process.poll() is not None or time.monotonic() > deadline:
                told = re.sub(r"sk-\S+", "***", log.read_text(errors="replace")[-3000:])
                raise RuntimeError(f"{name} does not start:\n{told}")
            time.sleep(0.2)
        yield Server(name, port, key, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError("the fake provider does not start")
