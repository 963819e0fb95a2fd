"""How many tokens a prompt has at the least, for guarding a context length."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from plugins import seam

#: Tokens a chat template adds around one message, at the least.
_PER_MESSAGE = 4
_COUNTED_CHARACTERS = 400_000
#: A general tokenizer differs from a model's own. Against Gemma's it was measured between
#: -8 % and +7 % on plain prose; what it counts is taken for a fifth too much.
_MARGIN = 1.2


def at_least(body: Mapping[str, Any]) -> int:
    """Return the tokens of the longest prompt in *body* that any tokenizer would find.

    Several prompts or inputs in one call each have a context to themselves. Past 400,000
    characters a text is taken to go on at the rate of its beginning.
    """
    separate = [_one(item) for item in _separate(body)]
    together = _count("\n".join(_texts(body)))
    messages = body.get("messages", body.get("input"))
    if isinstance(messages, list) and together:
        together += _PER_MESSAGE * len(messages)
    return max(int(together / _MARGIN), *separate, 0)


def _separate(body: Mapping[str, Any]) -> list[Any]:
    """Return the prompts of a call that takes several: texts, or lists of token ids."""
    found: list[Any] = []
    for name in ("prompt", "input"):
        value = body.get(name)
        if isinstance(value, list) and value and isinstance(value[0], int):
            found.append(value)
        elif isinstance(value, list):
            found.extend(item for item in value if isinstance(item, str | list))
    return found


def _one(prompt: str | list[int]) -> int:
    return len(prompt) if isinstance(prompt, list) else int(_count(prompt) / _MARGIN)


def _count(text: str) -> int:
    head = text[:_COUNTED_CHARACTERS]
    counted = len(_encoding().encode_ordinary(head))
    return counted * len(text) // max(len(head), 1)


@cache
def _encoding() -> Any:
    return seam.encoding("o200k_base")


def _texts(body: Mapping[str, Any]) -> list[str]:
    """Collect the texts that one model reads together; inline media is not text."""
    found: list[str] = []
    waiting = [body.get(name) for name in ("messages", "system", "instructions", "tools")]
    waiting.append(body.get("functions"))
    waiting.extend(v for name in ("prompt", "input") if isinstance(v := body.get(name), str))
    items = body.get("input")
    if isinstance(items, list) and items and isinstance(items[0], dict):
        waiting.append(items)
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            if not item.startswith("data:"):
                found.append(item)
        elif isinstance(item, dict):
            if item.get("type") != "base64":
                waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return found
