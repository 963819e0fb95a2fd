"""A provider that costs next to nothing: raw protocols, answers prepared in advance.

Every token of a stream differs from the one before: LiteLLM cuts a stream after a hundred
pieces that are the same.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from functools import cache

PROMPT_TOKENS = 12
_CHUNK = '"object":"chat.completion.chunk","created":1,"model":"m"'


def words(count: int) -> list[str]:
    """Return the tokens of a stream of *count*."""
    return [f"w{number % 97}x{number} " for number in range(count)]


@cache
def plain() -> bytes:
    document = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "yes"},
                "finish_reason": "stop",
            }
        ],
        "usage": _usage(1),
    }
    body = json.dumps(document, separators=(",", ":")).encode()
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@cache
def stream(count: int, *, usage: bool) -> bytes:
    """Return a whole answer of *count* tokens as an event stream."""
    events = [_event(json.dumps({"role": "assistant", "content": ""}))]
    events += [_event(json.dumps({"content": word})) for word in words(count)]
    events.append(_event("{}", '"stop"'))
    if usage:
        events.append(f'{{"id":"c",{_CHUNK},"choices":[],"usage":{json.dumps(_usage(count))}}}')
    parts = [f"data: {event}\n\n".encode() for event in (*events, "[DONE]")]
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return head + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"


def _event(delta: str, finish: str = "null") -> str:
    choice = f'{{"index":0,"delta":{delta},"finish_reason":{finish}}}'
    return f'{{"id":"c",{_CHUNK},"choices":[{choice}]}}'


def _usage(completion: int) -> dict[str, int]:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": completion,
        "total_tokens": PROMPT_TOKENS + completion,
    }


class _Provider(asyncio.Protocol):
    def __init__(self) -> None:
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, found, rest = self._seen.partition(b"\r\n\r\n")
        if not found:
            return
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        if len(rest) < length:
            return
        self._seen = rest[length:]
        body = json.loads(rest[:length] or b"{}")
        if body.get("stream"):
            asked = (body.get("stream_options") or {}).get("include_usage") is True
            self._transport.write(stream(body["max_tokens"], usage=asked))
        else:
            self._transport.write(plain())


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Provider, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    with suppress(ImportError):
        import uvloop

        uvloop.install()
    asyncio.run(_serve(int(sys.argv[1])))
