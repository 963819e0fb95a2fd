"""A provider on a loopback port, in a thread of the test process, that does as it is told.

It journals every request, also those to paths it does not know and attempts to open a
WebSocket, and counts every connection: an attacker's listener must not see even one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.fakes.dialects import DIALECTS, Dialect, Frame, openai_error
from tests.fakes.script import Fault, Script

_START_LIMIT = 10.0  # seconds
_UNKNOWN = Dialect(lambda body, script: {}, None, openai_error)


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived.

    Attributes:
        headers: Names in lower case.

        body: The parsed JSON; None when there is none or it does not parse.

        at: `time.monotonic()` when the request was complete.
    """

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes = field(repr=False)
    body: Any
    at: float

    def everything(self) -> str:
        """Return all of the request as one text to search in."""
        return f"{self.method} {self.path} {self.headers} {self.raw.decode('utf-8', 'replace')}"


class _Gone(Exception):
    """The caller closed the connection."""


class Provider:
    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self.connections = 0
        self.abandoned = 0
        self.journal: list[Seen] = []
        self.default = Script()
        self._next: deque[Script] = deque()
        self._released = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name=f"fake-{name}", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(_START_LIMIT):
            raise RuntimeError(f"the fake provider {self.name} did not start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_LIMIT)

    def script(self, *scripts: Script) -> None:
        """Answer the next requests so, in order; afterwards by `default` again."""
        self._next.extend(scripts)

    def always(self, script: Script) -> None:
        self.default = script

    def release(self) -> None:
        """Let every held request go on, and hold no further one until `reset`."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._released.set)

    def reset(self) -> None:
        """Forget the journal and the scripts; what is still held is released."""
        assert self._loop is not None
        cleared = threading.Event()

        def renew() -> None:
            self._released.set()
            self._released = asyncio.Event()
            cleared.set()

        self._loop.call_soon_threadsafe(renew)
        cleared.wait(_START_LIMIT)
        self._next.clear()
        self.default = Script()
        self.journal.clear()
        self.connections = 0
        self.abandoned = 0

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=1 << 20)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._one_request(reader, writer):
                pass
        except (_Gone, ConnectionError, asyncio.IncompleteReadError):
            self.abandoned += 1
        except asyncio.CancelledError:
            # Only `_serve` cancels, and waits for this task; streams.py would log it.
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _one_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Serve one request; False when the connection is at its end."""
        seen = await _read(reader)
        if seen is None:
            return False
        script = self._next.popleft() if self._next else self.default
        self.journal.append(seen)
        await self._wait(reader, script)
        if script.fault is Fault.HANGS_UP:
            return False
        dialect = DIALECTS.get((seen.method, seen.path.partition("?")[0]), _UNKNOWN)
        streams = isinstance(seen.body, dict) and seen.body.get("stream") is True
        if streams and dialect.stream is not None and script.status == 200:
            return await self._stream(writer, script, dialect.stream(seen.body, script))
        status, body = self._answer(seen, dialect, script)
        await _send_whole(writer, status, script, body)
        return True

    async def _wait(self, reader: asyncio.StreamReader, script: Script) -> None:
        if not script.hold and not script.delay:
            return
        waiting = self._released.wait() if script.hold else asyncio.sleep(script.delay)
        going_on = asyncio.ensure_future(waiting)
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({going_on, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise _Gone
        finally:
            for task in (going_on, leaving):
                task.cancel()
            await asyncio.gather(going_on, leaving, return_exceptions=True)

    def _answer(self, seen: Seen, dialect: Dialect, script: Script) -> tuple[int, bytes]:
        if script.fault is Fault.ECHOES:
            document = dialect.error(script.status, f"could not serve {seen.everything()}")
        elif dialect is _UNKNOWN:
            return 404, json.dumps(openai_error(404, f"{self.name} has no such path")).encode()
        elif script.status != 200:
            text = f"{self.name} at {self.url} is out of order"
            document = script.document or dialect.error(script.status, text)
        else:
            document = script.whole or dialect.whole(seen.body, script)
        body = json.dumps(document).encode()
        return script.status, body[: len(body) // 2] if script.fault is Fault.NOT_JSON else body

    async def _stream(
        self, writer: asyncio.StreamWriter, script: Script, frames: Iterator[Frame]
    ) -> bool:
        writer.write(_head(200, {**script.headers, "Transfer-Encoding": "chunked"}, _EVENTS))
        await writer.drain()
        if script.fault is Fault.NO_CHUNK:
            return False
        if script.fault is Fault.ERROR_EVENT:
            error = {"error": {"message": f"{self.name} is out of order", "code": 500}}
            frames = iter([Frame(b"data: " + json.dumps(error).encode() + b"\n\n")])
        sent = 0
        for frame in frames:
            if frame.text:
                if sent == script.cut_after:
                    return False
                sent += 1
                await asyncio.sleep(script.pause)
            writer.write(b"%x\r\n" % len(frame.data) + frame.data + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


_EVENTS = "text/event-stream"


def _head(status: int, headers: dict[str, str], content_type: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Told", f"Content-Type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _send_whole(
    writer: asyncio.StreamWriter, status: int, script: Script, body: bytes
) -> None:
    headers = {**script.headers, "Content-Length": str(len(body))}
    writer.write(_head(status, headers, "application/json") + body)
    await writer.drain()


async def _read(reader: asyncio.StreamReader) -> Seen | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    path = rest.partition(" ")[0]
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines if line)
    }
    raw = await _read_body(reader, headers)
    try:
        body = json.loads(raw) if raw else None
    except ValueError:
        body = None
    return Seen(method, path, headers, raw, body, time.monotonic())


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    pieces: list[bytes] = []
    while size := int((await reader.readline()).strip() or b"0", 16):
        pieces.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(pieces)
