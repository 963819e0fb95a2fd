"""What a fake provider does with one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any


class Fault(Enum):
    """How an answer goes wrong below the level of status codes."""

    HANGS_UP = auto()  # closes before the first byte
    NO_CHUNK = auto()  # a stream: 200 and its headers, then closed
    ERROR_EVENT = auto()  # a stream: 200, then an error event in place of the first chunk
    NOT_JSON = auto()  # 200 with half a document
    ECHOES = auto()  # an error whose text repeats the request's headers and body


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One answer.

    Attributes:
        words: How many words the answer has, and a stream how many chunks of text.

        usage: Prompt and completion tokens that are reported; None reports nothing.

        delay: Seconds before the first byte.

        hold: Answer only once `Provider.release` was called.

        document: The body of an answer that is not 200; None: a plausible one.

        cut_after: A stream is broken off after so many chunks of text.

        whole: The document of a plain answer of 200; None: a plausible one.

        pause: Seconds between two chunks of a stream.
    """

    words: int = 3
    usage: tuple[int, int] | None = (10, 20)
    delay: float = 0.0
    hold: bool = False
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    document: Any = None
    fault: Fault | None = None
    cut_after: int | None = None
    whole: Any = None
    pause: float = 0.0


def answers(prompt_tokens: int = 10, completion_tokens: int = 20, **more: Any) -> Script:
    return Script(usage=(prompt_tokens, completion_tokens), **more)


def fails(status: int = 500, *, retry_after: str | None = None, document: Any = None) -> Script:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return Script(status=status, headers=headers, document=document)


def breaks(fault: Fault, *, status: int = 200) -> Script:
    return Script(fault=fault, status=status)
