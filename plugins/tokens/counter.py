"""Counts the prompt tokens of one deployment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, Protocol

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from plugins import seam
from plugins.policy.usage import Counted
from plugins.tokens import images, prompt
from plugins.tokens.prompt import Prompt

#: Tokens a chat template puts around one message, and around the whole, at the most.
PER_MESSAGE = 8
AROUND = 32
#: OpenAI's rule: three around a message and three before the answer. Source: its cookbook,
#: "How to count tokens with tiktoken".
_OPENAI_MESSAGE = 3
ENCODINGS = ("o200k_base", "cl100k_base")
#: Up to so many bytes a body is counted at once: it takes about a millisecond.
_AT_ONCE = 6_000
#: What lies beyond is bounded by its bytes: no context that we know of is longer.
_COUNTED_CHARACTERS = 8_000_000
#: Long texts are counted in pieces. A cut adds a token or two, and takes none away that matters.
_PIECE = 200_000

Template = Callable[[Sequence[Mapping[str, Any]], Sequence[Any]], str]


class NotUsable(ValueError):
    """A tokenizer file or a chat template cannot be used; the text says why."""


class Tokenizer(Protocol):
    def lengths(self, texts: list[str], *, special: bool) -> int:
        """Return the tokens of all *texts*; *special*: with those put around a whole text."""


class Counter:
    """Counts for one deployment, exactly where it can, else a number that is not exceeded.

    Without a tokenizer a text counts with its bytes: a byte-level token covers at least one
    byte of UTF-8.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        template: Template | None = None,
        image: images.Rule = images.unknown,
        *,
        openai: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._image = image
        self._openai = openai

    async def count(self, body: Mapping[str, Any], size: int) -> Counted:
        """Return the prompt tokens of *body*, whose JSON has *size* bytes.

        The event loop goes on meanwhile: the tokenizers let other threads run.
        """
        if size <= _AT_ONCE:
            return self.count_now(body)
        return await asyncio.to_thread(self.count_now, body)

    def count_now(self, body: Mapping[str, Any]) -> Counted:
        read = prompt.read(body)
        shown = sum(map(self._image, read.images))
        separate = self._lengths(read.separate, special=True) + read.ids
        if not read.turns:
            around = 0 if self._tokenizer is not None else AROUND + 2 * len(read.separate)
            rest = self._lengths(read.rest)
            exact = self._tokenizer is not None and read.plain and not self._too_long(read)
            return Counted(separate + rest + shown + around, exact)
        counted = self._conversation(read)
        return Counted(counted.tokens + separate + shown, counted.exact and not read.separate)

    def _conversation(self, read: Prompt) -> Counted:
        whole = read.plain and not self._too_long(read)
        if self._openai and whole:
            around = _OPENAI_MESSAGE * (len(read.turns) + 1)
            roles = self._lengths([turn["role"] for turn in read.turns])
            return Counted(self._lengths(read.texts()) + roles + around, exact=True)
        bound = self._lengths(read.texts()) + PER_MESSAGE * len(read.turns) + AROUND
        if self._template is None or self._tokenizer is None:
            return Counted(bound, exact=False)
        try:
            text = self._template(read.turns, read.tools)
        except jinja2.TemplateError:  # the engine, too, may refuse these messages
            return Counted(bound, exact=False)
        tokens = self._lengths([text])
        return Counted(tokens, exact=True) if whole else Counted(max(tokens, bound), exact=False)

    async def estimate(self, texts: list[str]) -> int:
        """Return about how many tokens an answer of these texts has."""
        text = "".join(texts)
        tokenizer = self._tokenizer or general()
        if len(text) <= _AT_ONCE:
            return _counted(tokenizer, [text])
        return await asyncio.to_thread(_counted, tokenizer, [text])

    def _lengths(self, texts: list[str], *, special: bool = False) -> int:
        if self._tokenizer is None:
            return sum(len(text.encode()) for text in texts)
        return _counted(self._tokenizer, texts, special=special)

    @staticmethod
    def _too_long(read: Prompt) -> bool:
        texts = (*read.texts(), *read.separate)
        return any(len(text) > _PIECE for text in texts)


def _counted(tokenizer: Tokenizer, texts: list[str], *, special: bool = False) -> int:
    total = 0
    pieces: list[str] = []
    for text in texts:
        head = text[:_COUNTED_CHARACTERS]
        total += len(text[_COUNTED_CHARACTERS:].encode())
        pieces.extend(head[start : start + _PIECE] for start in range(0, len(head), _PIECE))
        if special and not text:
            pieces.append("")
    return total + tokenizer.lengths(pieces, special=special)


class _FromFile:
    """A tokenizer.json, read by the `tokenizers` library."""

    def __init__(self, file: Path) -> None:
        from tokenizers import Tokenizer as Reader

        try:
            self._reader = Reader.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise NotUsable(f"{file} is not a tokenizer.json: {error}") from None
        self._reader.no_truncation()
        self._reader.no_padding()

    def lengths(self, texts: list[str], *, special: bool) -> int:
        # The batch call lets other threads run while it works; the single one does not.
        encoded = self._reader.encode_batch_fast(texts, add_special_tokens=special)
        return sum(len(item) for item in encoded)


class _FromEncoding:
    """One of OpenAI's encodings, whose files come with LiteLLM."""

    def __init__(self, name: str) -> None:
        self._encoding = seam.encoding(name)

    def lengths(self, texts: list[str], *, special: bool) -> int:
        return sum(len(self._encoding.encode_ordinary(text)) for text in texts)


@cache
def general() -> Tokenizer:
    """Return the tokenizer for texts whose own is not known."""
    return _FromEncoding(ENCODINGS[0])


@cache
def load(name: str | None, file: Path | None, template: Path | None) -> tuple[Any, Any]:
    """Return the tokenizer and the chat template that a deployment names, each or None.

    Without a template of its own the one in the `tokenizer_config.json` or the
    `chat_template.jinja` beside *file* is taken.

    Raises:
        NotUsable: If a file is not there, or not what it is taken for.
    """
    if name is not None:
        return _FromEncoding(name), None
    if file is None:
        return None, None
    special: dict[str, str] = {}
    source = None
    settings = file.with_name("tokenizer_config.json")
    if settings.is_file():
        found = json.loads(settings.read_text(encoding="utf-8"))
        special = {n: _token(found[n]) for n in found if n.endswith("_token") and found[n]}
        source = _default(found.get("chat_template"))
    beside = template or file.with_name("chat_template.jinja")
    if template is not None or beside.is_file():
        try:
            source = beside.read_text(encoding="utf-8")
        except OSError as error:
            raise NotUsable(f"{beside}: {error.strerror}") from None
    return _FromFile(file), compile_template(source, special) if source else None


def _token(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else str(value)


def _default(templates: Any) -> str | None:
    if isinstance(templates, list):
        named = {item.get("name"): item.get("template") for item in templates}
        return named.get("default")
    return templates if isinstance(templates, str) else None


def compile_template(source: str, special: Mapping[str, str]) -> Template:
    """Return a chat template as a function, in the way its readers have agreed on.

    It comes with a model, from elsewhere: it runs in a sandbox.

    Source: "Chat templates" in the documentation of Hugging Face's Transformers.

    Raises:
        NotUsable: If it does not compile.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    try:
        compiled = environment.from_string(source)
    except jinja2.TemplateError as error:
        raise NotUsable(f"the chat template does not compile: {error}") from None

    def render(turns: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> str:
        return compiled.render(
            messages=turns, tools=tools or None, add_generation_prompt=True, **special
        )

    return render


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
