"""What a model reads of a call's body, in one form for all dialects."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import imagesize
import orjson

from plugins.tokens.images import Image

_TEXTS = ("text", "input_text", "output_text")
_IMAGES = ("image_url", "image", "input_image")
#: A picture's size stands at its beginning, in a JPEG after its metadata.
_HEAD = 400_000


@dataclass(slots=True)
class Prompt:
    """A prompt, taken apart.

    Attributes:
        turns: Messages with `role` and `content` as text, as a chat template reads them.

        rest: JSON of what has no place there: tools, calls of tools, other parts.

        separate: Texts that are each a prompt by themselves.

        ids: How many token ids were sent in place of text.

        plain: Whether it is nothing but roles and whole texts.
    """

    turns: list[dict[str, Any]] = field(default_factory=list)
    tools: list[Any] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    separate: list[str] = field(default_factory=list)
    ids: int = 0
    plain: bool = True

    def texts(self) -> list[str]:
        return [str(turn["content"]) for turn in self.turns] + self.rest


def read(body: Mapping[str, Any]) -> Prompt:
    """Return what the model is to read of *body*, in any of the dialects."""
    prompt = Prompt()
    for name in ("system", "instructions"):
        if body.get(name):
            _message(prompt, {"role": "system", "content": body[name]})
    for name in ("messages", "prompt", "input"):
        _given(prompt, body.get(name), as_turn=name == "input" and bool(prompt.turns))
    prompt.tools = [*(body.get("tools") or ()), *(body.get("functions") or ())]
    beside = (body.get(name) for name in ("response_format", "text", "grammar", "suffix"))
    for part in (*prompt.tools, *beside):
        if part is not None and part != {"type": "text"}:
            _other(prompt, part)
    return prompt


def _given(prompt: Prompt, value: Any, *, as_turn: bool) -> None:
    """Take a text, a list of texts or of token ids, or a list of messages."""
    if isinstance(value, str):
        if as_turn:
            prompt.turns.append({"role": "user", "content": value})
        else:
            prompt.separate.append(value)
        return
    for item in value if isinstance(value, list) else ():
        if isinstance(item, Mapping):
            _message(prompt, item)
        elif isinstance(item, str):
            prompt.separate.append(item)
        elif isinstance(item, list):
            prompt.ids += len(item)
        else:
            prompt.ids += 1


def _message(prompt: Prompt, message: Mapping[str, Any]) -> None:
    content = message.get("content")
    turn: dict[str, Any] = {"role": str(message.get("role", "user")), "content": content or ""}
    if not isinstance(content, str | None):
        texts = list(_parts(prompt, content))
        turn["content"] = "\n".join(texts)
        prompt.plain &= len(texts) == 1
    further = {n: v for n, v in message.items() if n not in ("role", "content") and v is not None}
    if further:
        _other(prompt, further)
        if isinstance(further.get("tool_calls"), list):
            turn["tool_calls"] = [_with_arguments(call) for call in further["tool_calls"]]
    prompt.turns.append(turn)


def _parts(prompt: Prompt, content: Any) -> Iterator[str]:
    """Yield the texts of a content; images and what is neither go to their places."""
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(part, str):
            yield part
        elif kind in _TEXTS and isinstance(part.get("text"), str):
            yield part["text"]
        elif kind in _IMAGES:
            prompt.images.append(_image(part))
            prompt.plain = False
        elif kind == "tool_result" and isinstance(part.get("content"), list):
            yield from _parts(prompt, part["content"])
            _other(prompt, {n: v for n, v in part.items() if n != "content"})
        else:
            _other(prompt, part)


def _other(prompt: Prompt, part: Any) -> None:
    prompt.rest.append(orjson.dumps(part).decode())
    prompt.plain = False


def _with_arguments(call: Any) -> Any:
    """Return a tool call with its arguments read: chat templates write them out themselves."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    try:
        arguments = orjson.loads(function.get("arguments") or "{}")
    except (orjson.JSONDecodeError, TypeError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _image(part: Mapping[str, Any]) -> Image:
    """Return an image's size, as its own first bytes tell it; a link tells none."""
    given = part.get("image_url", part.get("source"))
    detail = part.get("detail")
    if isinstance(given, Mapping):
        detail = given.get("detail", detail)
        given = given.get("url", given.get("data"))
    width, height = _size(given) if isinstance(given, str) else (-1, -1)
    known = width > 0 and height > 0
    name = detail if isinstance(detail, str) else "auto"
    return Image(width if known else None, height if known else None, name)


def _size(url: str) -> tuple[int, int]:
    data = url.partition(",")[2] if url.startswith("data:") else url
    head = data[:_HEAD]
    try:
        width, height = imagesize.get(BytesIO(base64.b64decode(head[: len(head) // 4 * 4])))
        return int(width), int(height)
    except (ValueError, binascii.Error, OSError, KeyError, IndexError, TypeError):
        return -1, -1
    except Exception:  # the library reads hostile bytes: whatever it trips over, no size is known
        return -1, -1
