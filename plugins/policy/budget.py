"""What every budget that covers an attempt must admit, as plain arithmetic.

In service the database decides, in one statement over all replicas
(`migrations/functions/hold_v1.sql`). This is the same rule without a database: for explaining a
decision, and as the executable statement that a test holds the SQL to. Amounts are `Decimal`, in
US dollars or tokens; nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, DivisionByZero, Inexact, InvalidOperation, localcontext
from typing import Literal

from plugins.policy.money import Price

Unit = Literal["usd", "tokens"]
Code = Literal["budget_exceeded", "request_too_large", "price_missing"]

#: As many digits as any amount needs, and an error rather than a rounded one.
EXACT = Context(prec=200, traps=[Inexact, InvalidOperation, DivisionByZero])


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit that covers an attempt, and how far its window is gone.

    Attributes:
        name: What a refusal names.

        of_request: True for what is left of one request's own limit: nothing is too large
            for it, only too late.
    """

    name: str
    unit: Unit
    limit: Decimal
    used: Decimal = Decimal(0)
    held: Decimal = Decimal(0)
    of_request: bool = False

    @property
    def room(self) -> Decimal:
        return self.limit - self.used - self.held


@dataclass(frozen=True, slots=True)
class Asked:
    """What one attempt may use at most.

    Attributes:
        outputs: How many answers; each may be as long as `cap`.

        cap: Output tokens of one answer.

        floor: The shortest cap that is still worth a call; a cap below it is its own floor.

        usd_left: What is left of the request's own limits; None: it has none.
    """

    price: Price
    prompt: int
    cap: int
    floor: int
    outputs: int = 1
    writes_cache: bool = False
    usd_left: Decimal | None = None
    tokens_left: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """The attempt may be made, with this cap; `usd` is None when its price is not known."""

    cap: int
    usd: Decimal | None
    tokens: Decimal

    def amount(self, unit: Unit) -> Decimal | None:
        """Return what each budget of *unit* sets aside."""
        return self.usd if unit == "usd" else self.tokens


@dataclass(frozen=True, slots=True)
class Refused:
    code: Code
    budget: Budget


def decide(budgets: Sequence[Budget], asked: Asked) -> Held | Refused:
    """Return what an attempt under all of *budgets* sets aside, or the first that refuses it.

    Equal to the limit fits. What does not fit is shrunk, to no less than the floor.

    Args:
        budgets: In the order of their ids, as the database locks them.
    """
    with localcontext(EXACT):
        rates: dict[Unit, tuple[Decimal | None, Decimal | None]] = {
            "usd": (_prompt_usd(asked), _token_usd(asked)),
            "tokens": (Decimal(asked.prompt), Decimal(asked.outputs)),
        }
        cap, floor = asked.cap, min(asked.floor, asked.cap)
        for budget in (*budgets, *_own(asked)):
            prompt, token = rates[budget.unit]
            if prompt is None or token is None:
                return Refused("price_missing", budget)
            fits = fitting_cap(budget.room, prompt, token, cap)
            if fits is None or fits < floor:
                never = not budget.of_request and 0 < budget.limit < prompt + token * floor
                return Refused("request_too_large" if never else "budget_exceeded", budget)
            cap = fits
        prompt, token = rates["usd"]
        usd = None if prompt is None or token is None else prompt + token * cap
        return Held(cap, usd, Decimal(asked.prompt + asked.outputs * cap))


def fitting_cap(room: Decimal, prompt: Decimal, token: Decimal, cap: int) -> int | None:
    """Return the largest cap, up to *cap*, that costs no more than *room*; None: no prompt fits.

    What costs nothing always fits, even where the room is negative.
    """
    if prompt + token * cap == 0:
        return cap
    if prompt > room:
        return None
    if prompt + token * cap <= room:
        return cap
    return int((room - prompt) // token)


def _prompt_usd(asked: Asked) -> Decimal | None:
    """Return the prompt's cost at the dearest rate its tokens may be charged at."""
    price = asked.price
    if price.input is None:
        return None
    rates = (price.input, price.cached, price.cache_write if asked.writes_cache else None)
    return asked.prompt * max(rate for rate in rates if rate is not None)


def _token_usd(asked: Asked) -> Decimal | None:
    if asked.price.output is None:
        # A call without output, such as an embedding, needs no output price.
        return None if asked.cap else Decimal(0)
    return asked.outputs * asked.price.output


def _own(asked: Asked) -> list[Budget]:
    left: list[tuple[Unit, Decimal | None]] = [
        ("usd", asked.usd_left),
        ("tokens", asked.tokens_left),
    ]
    return [
        Budget("request", unit, limit, of_request=True) for unit, limit in left if limit is not None
    ]
