"""The stock LiteLLM proxy as a child of `deploy/up`: its environment, its log, its end."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from plugins.config.flags import START_HOOK
from plugins.setup import child_process as child
from plugins.setup.data_folder import ROOT, kept_secret

GRACE_SECONDS = 30.0  # for open requests, when GRACEFUL_SHUTDOWN_TIMEOUT does not say
KILL_AFTER = 10.0  # seconds beyond the grace
LOG_BYTES = 20_000_000  # a longer log is cut
LAST_LINES = 15
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
#: While LiteLLM loads it is talkative; what an operator must act on looks like this.
_TROUBLE = re.compile(r"(WARNING|ERROR|CRITICAL) wicketgate|^Usage:|^Error:")
#: And this, once it serves; the rest is banners, and one line for each request.
_NEWS = re.compile(r"WARNING|ERROR|CRITICAL|Traceback|(Error|Exception)\b|INFO wicketgate")
#: Told by ourselves already.
_TOLD = re.compile(r"INFO wicketgate(: ready:|\.metrics: )")


def environment(
    given: Mapping[str, str], folder: Path, config: Path, ledger_url: str, metrics_port: int
) -> dict[str, str]:
    """Return what the proxy gets to see; secrets travel here, never as arguments."""
    figures = folder / "metrics"
    shutil.rmtree(figures, ignore_errors=True)
    figures.mkdir(mode=0o700)
    return {
        # An operator may change these.
        "LITELLM_LOG": "ERROR",
        "GRACEFUL_SHUTDOWN_TIMEOUT": f"{GRACE_SECONDS:.0f}",
        # LiteLLM fetches no image itself; who sets `remote_media` may want it to.
        "MAX_IMAGE_URL_DOWNLOAD_SIZE_MB": "0",
        "LITELLM_MASTER_KEY": kept_secret(folder / "master_key", "sk-"),
        # LiteLLM would put a database of its own together from these.
        **{name: value for name, value in given.items() if not name.startswith("DATABASE_")},
        "LEDGER_URL": ledger_url,
        "LITELLM_WORKER_STARTUP_HOOKS": START_HOOK,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "WICKETGATE_CONFIG": str(config),
        "WICKETGATE_METRICS_PORT": str(metrics_port),
        "PROMETHEUS_MULTIPROC_DIR": str(figures),
        # No network at start, no other languages' code, no pages of its own, and no `.env`
        # file that the checks have not seen.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_RUST": "0",
        # No tries of a provider's client inside one attempt, where no hook sees them.
        "DEFAULT_MAX_RETRIES": "0",
        "LITELLM_MODE": "PRODUCTION",
        "DISABLE_ADMIN_UI": "True",
        "NO_DOCS": "True",
        "NO_REDOC": "True",
        "NO_OPENAPI": "True",
    }


def command(config: Path, host: str, port: int, workers: int) -> list[str]:
    litellm = Path(sys.executable).with_name("litellm")
    # Through the interpreter: a long path would not fit into a script's first line.
    return [
        *(sys.executable, str(litellm), "--config", str(config)),
        *("--host", host, "--port", str(port), "--num_workers", str(workers)),
        *("--telemetry", "False"),
        # A worker imports for longer than the 5 s that uvicorn waits before it kills it.
        *("--timeout_worker_healthcheck", "180"),
    ]


class ProxyProcess:
    def __init__(
        self,
        arguments: list[str],
        env: Mapping[str, str],
        log: Path,
        secrets: Iterable[str] = (),
    ) -> None:
        """Start it; its output goes to *log*, from which `news` reads.

        Args:
            secrets: Texts that no line shown may hold.
        """
        self._log = log
        self._secrets = [secret for secret in secrets if secret]
        self._read = 0
        self._grace = _seconds(env.get("GRACEFUL_SHUTDOWN_TIMEOUT", "")) + KILL_AFTER
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        with open(os.open(log, flags, 0o600), "ab") as output:
            self._process = subprocess.Popen(
                arguments,
                env=dict(env),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=child.at_start(when_orphaned=signal.SIGTERM),
                # A Ctrl-C is for us to pass on.
                process_group=0,
            )

    def poll(self) -> int | None:
        return self._process.poll()

    def news(self, *, loading: bool = False) -> list[str]:
        """Return the lines since the last look that are worth an operator's eye."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            fresh = log.read()
        complete = fresh[: fresh.rfind(b"\n") + 1]
        self._read += len(complete)
        if self._read > LOG_BYTES:
            os.truncate(self._log, 0)
            self._read = 0
        lines = self._clean(complete)
        wanted = _TROUBLE if loading else _NEWS
        return [line for line in _telling(lines, wanted) if not _TOLD.search(line)]

    def last_lines(self) -> list[str]:
        lines = self._clean(self._log.read_bytes())
        return [line for line in lines if line.strip()][-LAST_LINES:]

    def stop(self, hurry: Callable[[], bool]) -> None:
        """Let open requests end, then end it; at once when *hurry* says so."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self._grace
        while self._process.poll() is None and time.monotonic() < deadline and not hurry():
            time.sleep(0.05)
        # The whole group: workers of a parent that was killed would stay behind.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _clean(self, data: bytes) -> list[str]:
        text = _COLOUR.sub("", data.decode(errors="replace"))
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text.splitlines()


def _telling(lines: Iterable[str], wanted: re.Pattern[str]) -> Iterator[str]:
    """Yield the lines that are *wanted*, with the indented ones that belong to them."""
    telling = False
    for line in lines:
        telling = bool(wanted.search(line)) or (telling and line.startswith("    "))
        if telling:
            yield line


def is_ready(host: str, port: int) -> bool:
    """Ask the gateway whether it may serve."""
    connection = http.client.HTTPConnection(host, port, timeout=3)
    try:
        connection.request("GET", "/health/readiness")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _seconds(text: str) -> float:
    try:
        return max(float(text), 0.0)
    except ValueError:
        return GRACE_SECONDS
