"""What one request holds and has used: kept in the gate's record of the call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID

from plugins.meter import Meter
from plugins.policy.grants import Deployment
from plugins.policy.money import Price
from plugins.policy.usage import Counted

#: Output tokens of a deployment that states no limit.
DEFAULT_CAP = 4096


class Counts(Protocol):
    """Counts for a deployment: its prompts, and about what an answer has."""

    async def count(self, body: Mapping[str, Any], size: int) -> Counted: ...

    async def estimate(self, texts: list[str]) -> int: ...


@dataclass(frozen=True, slots=True)
class Priced:
    """A deployment, and what a call to it may use and costs."""

    deployment: Deployment
    price: Price
    counter: Counts
    max_output_tokens: int = DEFAULT_CAP
    reports_charges: bool = False


@dataclass(slots=True)
class Attempt:
    """One attempt that holds something.

    Attributes:
        price: As it was at admission; a reload does not change it.

        cap: The output tokens of one answer that were set aside, and that go upstream.

        sent: Whether it was let through to the provider.

        void: Whether it turned out that it never reached the provider; it has no row.
    """

    id: UUID
    priced: Priced
    prompt: Counted
    cap: int
    outputs: int
    held_usd: Decimal | None
    sent: bool = False
    settled: bool = False
    void: bool = False
    meter: Meter = field(default_factory=Meter)
    cost: Decimal | None = None


@dataclass(slots=True)
class Account:
    """What one request has used so far.

    Attributes:
        prepared: What was set aside for the first attempt, before LiteLLM was asked.

        size: Bytes of the body's JSON.

        attempts: What LiteLLM says of each attempt that was sent -> its hold, in order.

        left: Unit -> what the tightest budget has left, as last heard.
    """

    body: Mapping[str, Any] = field(repr=False)
    size: int
    prepared: Attempt | None = None
    attempts: dict[tuple[object, ...], Attempt] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)
    providers: set[str] = field(default_factory=set)
    left: dict[str, Decimal] = field(default_factory=dict)
    clamped: bool = False
    downgraded: bool = False
    counts: dict[Counts, Counted] = field(default_factory=dict)

    @property
    def adjusted(self) -> str:
        told = [n for n in ("clamped", "downgraded") if getattr(self, n)]
        return ", ".join(told) or "none"

    def current(self) -> Attempt | None:
        """Return the latest attempt that was sent."""
        return next(reversed(self.attempts.values()), None)

    def spent(self) -> Decimal:
        """Return what the attempts so far have cost, or still hold."""
        amounts = ((a.cost if a.settled else a.held_usd) for a in self.attempts.values())
        return sum((amount for amount in amounts if amount is not None), Decimal(0))

    async def count(self, priced: Priced) -> Counted:
        """Return the prompt tokens at a deployment; deployments that count alike count once."""
        found = self.counts.get(priced.counter)
        if found is None:
            found = self.counts[priced.counter] = await priced.counter.count(self.body, self.size)
        return found
