"""Reads what an answer used, from a whole answer or from the pieces of a stream.

Pieces come in three forms: LiteLLM's chunks with `choices`, events of `/v1/responses`, and
the bytes of Anthropic's event stream. All are read by their field names only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from plugins.policy.usage import Usage, read_usage


class Meter:
    """Gathers usage, and the text a count can be estimated from when no usage comes.

    Attributes:
        pieces: How many pieces carried text: each is at least one token.

        first_byte_at: When the first piece came; None: none came.
    """

    def __init__(self) -> None:
        self.pieces = 0
        self.first_byte_at: datetime | None = None
        self._usage: dict[str, Any] = {}
        self._texts: list[str] = []
        self._rest = b""
        self._hidden: Any = None

    def see(self, piece: Any) -> None:
        """Take one piece of a stream, or a whole answer."""
        if self.first_byte_at is None:
            self.first_byte_at = datetime.now(UTC)
        if isinstance(piece, bytes | str):
            for document in self._events(piece):
                self._document(document)
        elif isinstance(piece, Mapping):
            self._document(piece)
        else:
            self._object(piece)

    def usage(self) -> Usage | None:
        """Return what the provider says was used; None when it says nothing, or nonsense."""
        if not self._usage and isinstance(self._hidden, dict):
            # Where a caller did not ask for usage, LiteLLM keeps the provider's to itself, and
            # writes it here only when the stream has ended.
            self._take(self._hidden.get("usage"))
        return read_usage(self._usage) if self._usage else None

    def forget_usage(self) -> None:
        """Take back what was read: it turned out not to be the provider's."""
        self._usage = {}
        self._hidden = None

    def texts(self) -> list[str]:
        return self._texts

    def _object(self, piece: Any) -> None:
        choices = getattr(piece, "choices", None)
        self._take(getattr(piece, "usage", None))
        self._hidden = getattr(piece, "_hidden_params", None)
        if choices is not None:
            for choice in choices:
                self._choice(choice)
            return
        response = getattr(piece, "response", None)
        if response is not None:
            self._take(getattr(response, "usage", None))
        delta = getattr(piece, "delta", None)
        if isinstance(delta, str):
            self._text(delta)
        for item in getattr(piece, "output", None) or ():
            self._document(_mapping(item))

    def _choice(self, choice: Any) -> None:
        self._text(getattr(choice, "text", None))
        for name in ("delta", "message"):
            part = getattr(choice, name, None)
            if part is None:
                continue
            self._text(getattr(part, "content", None))
            self._text(getattr(part, "reasoning_content", None))
            for call in getattr(part, "tool_calls", None) or ():
                function = getattr(call, "function", None)
                self._text(getattr(function, "arguments", None))

    def _document(self, document: Mapping[str, Any]) -> None:
        """Read Anthropic's events and answers, and items of `/v1/responses`."""
        self._take(document.get("usage"))
        message = document.get("message")
        if isinstance(message, Mapping):
            self._take(message.get("usage"))
        delta = document.get("delta")
        if isinstance(delta, Mapping):
            for name in ("text", "thinking", "partial_json"):
                self._text(delta.get(name))
        content = document.get("content")
        for block in content if isinstance(content, list) else ():
            if isinstance(block, Mapping):
                self._text(block.get("text"))
                self._text(block.get("thinking"))

    def _take(self, usage: Any) -> None:
        """Let a later figure replace an earlier one; a zero replaces nothing."""
        if usage is not None:
            found = _mapping(usage)
            self._usage.update({n: v for n, v in found.items() if v or n not in self._usage})

    def _text(self, text: Any) -> None:
        if isinstance(text, str) and text:
            self.pieces += 1
            self._texts.append(text)

    def _events(self, piece: bytes | str) -> Iterator[Mapping[str, Any]]:
        data = self._rest + (piece.encode() if isinstance(piece, str) else piece)
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            try:
                document = orjson.loads(line[5:])
            except orjson.JSONDecodeError:
                continue
            if isinstance(document, Mapping):
                yield document


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    dumped = value.model_dump() if hasattr(value, "model_dump") else vars(value)
    return dumped if isinstance(dumped, Mapping) else {}
