"""An estimate of a prompt's tokens, for guarding a context length."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from plugins import seam

#: Tokens a chat template adds around one message, at the least.
_PER_MESSAGE = 4
_ENCODE_BYTES = 400_000


def estimate(body: Mapping[str, Any]) -> int:
    """Estimate the prompt tokens of a body, with a general tokenizer (o200k).

    Measured against Gemma's own count it lies within -8 % and +7 % on plain prose and within
    -29 % and +38 % on anything; past 400,000 characters the rest is taken at the same rate.
    """
    pieces = list(_texts(body))
    text = "\n".join(pieces)
    head = text[:_ENCODE_BYTES]
    counted = len(_encoding().encode_ordinary(head))
    scaled = counted * len(text) // max(len(head), 1)
    return scaled + _PER_MESSAGE * _messages(body)


def _messages(body: Mapping[str, Any]) -> int:
    messages = body.get("messages", body.get("input"))
    return len(messages) if isinstance(messages, list) else 1


@cache
def _encoding() -> Any:
    return seam.general_tokenizer()


def _texts(value: Any) -> list[str]:
    """Collect the texts a model reads; inline media (`data:` URLs) are not text."""
    found: list[str] = []
    waiting = [
        value.get(name)
        for name in ("messages", "prompt", "input", "system", "instructions", "tools", "functions")
    ]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            if not item.startswith("data:"):
                found.append(item)
        elif isinstance(item, dict):
            if item.get("type") == "base64":
                continue
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return found
