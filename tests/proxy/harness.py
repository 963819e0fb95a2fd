"""A real proxy process, and the hand that sends requests to it."""

from __future__ import annotations

import http.client
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

READY_LIMIT = 150.0  # seconds; a start takes 15 to 25 on an idle machine
STOP_LIMIT = 20.0
POLL = 0.1


class Proxy:
    """One replica.

    Attributes:
        log: The file that takes all of its output.

        errors: The body of every answer of 400 and above that was read through `client`.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        port: int,
        folder: Path,
        metrics_port: int,
    ) -> None:
        self.name = name
        self.metrics_port = metrics_port
        self.port = port
        self.master_key = environment["LITELLM_MASTER_KEY"]
        self.log = folder / f"{name}.log"
        self.errors: list[str] = []
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(
            base_url=self.url, timeout=30, event_hooks={"response": [self._note]}
        )
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _note(self, answer: httpx.Response) -> None:
        if answer.status_code >= 400:
            answer.read()
            self.errors.append(f"{answer.headers} {answer.text}")

    def wait_until(self, status: int, path: str = "/health/readiness") -> None:
        """Wait for *path* to answer *status*; fail with the log's end when it does not."""
        deadline = time.monotonic() + READY_LIMIT
        found: object = None
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                found = httpx.get(f"{self.url}{path}", timeout=5).status_code
            except httpx.HTTPError as error:
                found = error
            if found == status:
                return
            time.sleep(POLL)
        raise AssertionError(f"{self.name}: {path} answers {found!r}\n{self.output()[-4000:]}")

    def wait_for_key(self, key: str) -> None:
        """Wait until this replica knows *key*."""
        deadline = time.monotonic() + 10
        while self.get("/v1/models", key).status_code != 200:
            assert time.monotonic() < deadline, f"{self.name} does not learn of a new key"
            time.sleep(POLL / 5)

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def post(
        self,
        path: str,
        key: str | None,
        body: Any = None,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send *body* as JSON, or *content* as it is, with *key* as bearer."""
        bearer = {} if key is None else {"Authorization": f"Bearer {key}"}
        if content is None:
            return self.client.post(path, json=body, headers={**bearer, **(headers or {})})
        kind = {"Content-Type": "application/json"}
        return self.client.post(
            path, content=content, headers={**kind, **bearer, **(headers or {})}
        )

    def get(self, path: str, key: str | None) -> httpx.Response:
        return self.client.get(
            path, headers={} if key is None else {"Authorization": f"Bearer {key}"}
        )

    def wire(self) -> http.client.HTTPConnection:
        """Return a keep-alive connection, for many requests in little time."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
