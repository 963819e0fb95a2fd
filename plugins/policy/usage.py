"""How many tokens a provider says it used, in whichever of the three dialects it says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from numbers import Real
from typing import Any

#: More than any model takes or gives; beyond it a figure is nonsense.
MOST_TOKENS = 1_000_000_000
#: More US dollars than one call can cost.
MOST_COST = 1_000_000


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one attempt.

    Attributes:
        prompt: All prompt tokens, cached and cache-write tokens included.

        completion: All output tokens, reasoning included.

        source: `provider`, `estimated`, or `none` when nothing was used.

        flag: Why the figures are not to be taken as they are; None when they are.

        reported: US dollars that the provider says it charges.
    """

    prompt: int
    completion: int
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0
    source: str = "provider"
    flag: str | None = None
    reported: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """Prompt tokens before sending: exact, or a number that is not exceeded."""

    tokens: int
    exact: bool


NOTHING = Usage(0, 0, source="none")


def read_usage(raw: Mapping[str, Any]) -> Usage | None:
    """Return the usage in *raw*; None when it tells of no token at all, or not in numbers.

    OpenAI's prompt and input figures include cached tokens, Anthropic's do not. A figure that
    contradicts another is cut to what it can be, and flagged.
    """
    included = "prompt_tokens" in raw or "input_tokens_details" in raw
    prompt = _count(raw, "prompt_tokens", "input_tokens")
    completion = _count(raw, "completion_tokens", "output_tokens")
    if prompt is None or completion is None:
        return None
    read = _count(raw, "cache_read_input_tokens") or _detail(raw, "cached_tokens")
    written = _count(raw, "cache_creation_input_tokens") or 0
    reasoning = _detail(raw, "reasoning_tokens")
    if not included:
        prompt += read + written
    if prompt + completion == 0:
        return None
    kept_read = min(read, prompt)
    kept_written = min(written, prompt - kept_read)
    kept_reasoning = min(reasoning, completion)
    sound = (kept_read, kept_written, kept_reasoning) == (read, written, reasoning)
    return Usage(
        prompt,
        completion,
        kept_read,
        kept_written,
        kept_reasoning,
        flag=None if sound else "inconsistent",
        reported=_dollars(raw.get("cost")),
    )


def _count(raw: Mapping[str, Any], *names: str) -> int | None:
    """Return the first count there is; 0 when there is none, None for nonsense."""
    for name in names:
        value = raw.get(name)
        if value is not None:
            return value if type(value) is int and 0 <= value <= MOST_TOKENS else None
    return 0


def _detail(raw: Mapping[str, Any], name: str) -> int:
    for section in (
        "prompt_tokens_details",
        "input_tokens_details",
        "completion_tokens_details",
        "output_tokens_details",
    ):
        details = raw.get(section)
        if isinstance(details, Mapping) and details.get(name) is not None:
            return _count(details, name) or 0
    return 0


def _dollars(value: Any) -> Decimal | None:
    """Return a reported charge exactly as its digits say; None for what is no amount."""
    if isinstance(value, bool) or not isinstance(value, Real | str | Decimal):
        return None
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return None
    return amount if amount.is_finite() and 0 <= amount <= MOST_COST else None
