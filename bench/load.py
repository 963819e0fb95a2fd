"""Sends calls over kept connections and checks every answer to the last token."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

from bench import fake


class WrongAnswer(Exception):
    """An answer was not the one that the provider gave."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of call. `tokens` is 0 for a call that is not streamed."""

    name: str
    tokens: int
    concurrent: int


def request(case: Case, key: str) -> bytes:
    body = {
        "model": "bench",
        "messages": [{"role": "user", "content": "Say yes, and then count."}],
        "max_tokens": case.tokens or 1,
        **({"stream": True} if case.tokens else {}),
    }
    content = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def run(port: int, key: str, case: Case, calls: int) -> list[float]:
    """Make *calls* calls and return how long each took, in seconds.

    Raises:
        WrongAnswer: If one is not answered with exactly what the provider sent.
    """
    sent = request(case, key)
    left = iter(range(calls))
    taken: list[float] = []
    answers: list[tuple[int, bytes]] = []

    async def one_after_another() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
        try:
            for _ in left:
                start = time.perf_counter()
                writer.write(sent)
                answers.append(await _answer(reader))
                taken.append(time.perf_counter() - start)
        finally:
            writer.close()

    async with asyncio.timeout(300), asyncio.TaskGroup() as group:
        for _ in range(case.concurrent):
            group.create_task(one_after_another())
    # Only now: reading one answer would hold up the others that are under way.
    for status, body in answers:
        check(case, status, body)
    return taken


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head[9:12])
    for line in head.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return status, await reader.readexactly(int(line[15:]))
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    await reader.readexactly(2)
    return status, b"".join(parts)


def check(case: Case, status: int, body: bytes) -> None:
    """Compare an answer with what the provider sent, token by token."""
    if status != 200:
        raise WrongAnswer(f"{case.name}: status {status}: {body[:300]!r}")
    if not case.tokens:
        found = [json.loads(body)["choices"][0]["message"]["content"]]
        expected = ["yes"]
    else:
        found, expected = _words(body), fake.words(case.tokens)
        if not body.rstrip().endswith(b"data: [DONE]"):
            raise WrongAnswer(f"{case.name}: the stream has no end")
    if found != expected:
        raise WrongAnswer(f"{case.name}: {len(found)} tokens, not {len(expected)} as sent")


def _words(body: bytes) -> list[str]:
    events = (json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {"))
    deltas = (choice["delta"] for event in events for choice in event.get("choices", ()))
    return [delta["content"] for delta in deltas if delta.get("content")]
