"""Whole events out of a stream's pieces, and which of them tell of a failure."""

from __future__ import annotations

import re
from typing import Any

import orjson

_END = re.compile(rb"\r?\n\r?\n")
#: An event that has not ended after so many bytes is passed on as it is.
_TAIL_BYTES = 32_000_000
_FAILURES = frozenset({"error", "response.failed"})


class Events:
    """Cuts a `text/event-stream` into whole events.

    LiteLLM sends most streams event by event, but a provider's own stream as the network
    delivers it.
    """

    def __init__(self) -> None:
        self._tail = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the events that are complete with *piece*, each with its end."""
        looked_at = max(0, len(self._tail) - 3)  # an end may begin in what came before
        self._tail += piece
        events = []
        start = 0
        for end in _END.finditer(self._tail, looked_at):
            events.append(bytes(self._tail[start : end.end()]))
            start = end.end()
        del self._tail[:start]
        return events + self.rest() if len(self._tail) > _TAIL_BYTES else events

    def rest(self) -> list[bytes]:
        """Return what stands after the last end, when the stream is over."""
        rest, self._tail = bytes(self._tail), bytearray()
        return [rest] if rest else []


def tells_of_failure(event: bytes) -> bool:
    """Return whether *event* is a provider's or LiteLLM's report of an error."""
    if b"error" not in event and b"failed" not in event:
        return False
    name, data = b"", []
    for line in event.splitlines():
        field, _, value = line.partition(b":")
        if field == b"event":
            name = value.strip()
        elif field == b"data":
            data.append(value.removeprefix(b" "))
    if name.decode("utf-8", "replace") in _FAILURES:
        return True
    try:
        document: Any = orjson.loads(b"\n".join(data))
    except orjson.JSONDecodeError:
        return False
    return is_failure(document)


def is_failure(document: Any) -> bool:
    """Return whether an answer, or the data of an event, reports an error in its place."""
    if isinstance(document, list):
        return any(is_failure(item) for item in document)
    if not isinstance(document, dict):
        return False
    response = document.get("response")
    choices = document.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return (
        bool(document.get("error"))
        or document.get("type") in ("error", "response.failed")
        or document.get("object") == "error"
        or any(isinstance(part, dict) and bool(part.get("error")) for part in (response, first))
    )
