"""Upper bounds for tokens that are not counted.

A byte-level token covers at least one byte of UTF-8, so a text has no more tokens than bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from plugins import tokens

#: Tokens a chat template puts around one message, and around the whole, at the most.
PER_MESSAGE = 8
AROUND = 32
_PROMPT_FIELDS = (
    *("messages", "system", "instructions", "input", "prompt", "tools", "functions", "suffix"),
    *("response_format", "text", "grammar"),
)


def at_most(body: Mapping[str, Any]) -> int:
    """Return a number of prompt tokens that the call cannot exceed.

    Every text counts with its bytes, and so does inline media: an image is billed for less
    than its encoded size from a few hundred bytes on.
    """
    total = AROUND
    for name in _PROMPT_FIELDS:
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, str):
            total += len(value.encode())
        elif name in ("messages", "input") and isinstance(value, list):
            total += sum(PER_MESSAGE + _size(item) for item in value)
        else:
            total += _size(value)
    return total


def _size(item: Any) -> int:
    """Return the bytes of an item's texts; of what is not plainly text, of its JSON."""
    if isinstance(item, str):
        return len(item.encode())
    if isinstance(item, Mapping) and isinstance(item.get("content"), str):
        rest = {name: value for name, value in item.items() if name not in ("content", "role")}
        return len(item["content"].encode()) + (len(orjson.dumps(rest)) if rest else 0)
    return len(orjson.dumps(item))


def estimate(texts: list[str]) -> int:
    """Return about how many tokens a generated text has, by a general tokenizer."""
    return tokens.at_least({"prompt": "".join(texts)}) if texts else 0
