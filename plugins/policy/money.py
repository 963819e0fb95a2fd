"""What tokens cost. Exact: `Decimal` all the way, nothing is rounded."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from plugins.policy.usage import Usage


@dataclass(frozen=True, slots=True)
class Price:
    """One revision of a deployment's price, in US dollars for one token.

    Attributes:
        input: None when the entry states none; 0 is a price.

        cached: For prompt tokens read from a provider's cache; None: as `input`.

        cache_write: For prompt tokens written to it; None: as `input`.
    """

    input: Decimal | None
    output: Decimal | None
    cached: Decimal | None = None
    cache_write: Decimal | None = None


def cost(usage: Usage, price: Price) -> Decimal | None:
    """Return what *usage* costs; None when a price it needs is not known, never 0 instead.

    Cached and cache-write tokens are part of the prompt, reasoning tokens of the completion:
    each token is charged once.
    """
    if price.input is None or (price.output is None and usage.completion > 0):
        return None
    plain = usage.prompt - usage.cached - usage.cache_write
    cached = price.input if price.cached is None else price.cached
    written = price.input if price.cache_write is None else price.cache_write
    return (
        plain * price.input
        + usage.cached * cached
        + usage.cache_write * written
        + usage.completion * (price.output or Decimal(0))
    )


def plain(amount: Decimal) -> str:
    """Return *amount* as digits: exactly, without an exponent or zeros that say nothing."""
    digits = format(amount, "f")
    return (digits.rstrip("0").rstrip(".") if "." in digits else digits) or "0"
