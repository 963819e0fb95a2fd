"""The rule of budgets, without a database; `tests/ledger/test_holds_agree.py` has the table."""

from __future__ import annotations

from decimal import Decimal, Inexact

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.policy.budget import Asked, Budget, Held, Refused, decide, fitting_cap
from plugins.policy.money import Price

AMOUNTS = st.decimals(0, 100, places=4)


@given(room=st.decimals(-10, 100, places=4), prompt=AMOUNTS, token=AMOUNTS, cap=st.integers(0, 999))
def test_the_cap_is_the_largest_that_fits(
    room: Decimal, prompt: Decimal, token: Decimal, cap: int
) -> None:
    """It costs no more than the room, and one token more would, or nobody asked for it."""
    fits = fitting_cap(room, prompt, token, cap)

    if fits is None:
        assert prompt + token * cap > 0
        assert prompt > room
    elif fits < cap:
        assert prompt + token * fits <= room < prompt + token * (fits + 1)
    else:
        assert prompt + token * cap <= max(room, 0)


@given(
    limits=st.lists(AMOUNTS, max_size=4),
    used=st.lists(AMOUNTS, min_size=4, max_size=4),
    cap=st.integers(1, 999),
    floor=st.integers(1, 20),
)
def test_no_limit_is_passed(
    limits: list[Decimal], used: list[Decimal], cap: int, floor: int
) -> None:
    """Whatever is admitted, used and held stay within every limit."""
    budgets = [Budget("b", "usd", limit, spent) for limit, spent in zip(limits, used, strict=False)]
    price = Price(Decimal("0.01"), Decimal("0.02"))

    decided = decide(budgets, Asked(price, 10, cap, floor))

    if isinstance(decided, Held):
        assert decided.usd is not None
        assert all(budget.room >= decided.usd for budget in budgets)
        assert min(floor, cap) <= decided.cap <= cap
    else:
        assert decided.budget in budgets


def test_each_budget_holds_in_its_own_unit() -> None:
    """Dollars and tokens of the cap that goes upstream, with the prompt's."""
    budgets = [Budget("tenant", "tokens", Decimal(50)), Budget("key", "usd", Decimal(1))]
    price = Price(Decimal("0.001"), Decimal("0.002"))

    held = decide(budgets, Asked(price, 10, 100, 16, outputs=2))

    assert held == Held(20, Decimal("0.09"), Decimal(50))
    assert isinstance(held, Held)
    assert [held.amount(budget.unit) for budget in budgets] == [50, Decimal("0.09")]


def test_the_refusal_carries_the_budget_as_it_stood() -> None:
    """For whoever explains it: which one, and how far it was used."""
    full = Budget("key", "tokens", Decimal(100), Decimal(60), Decimal(40))
    budgets = [Budget("tenant", "usd", Decimal(1)), full]

    refused = decide(budgets, Asked(Price(Decimal(0), Decimal(0)), 10, 100, 16))

    assert refused == Refused("budget_exceeded", full)


def test_an_amount_is_never_rounded() -> None:
    """What has more digits than can be carried is an error."""
    price = Price(Decimal("1." + "1" * 250), Decimal(0))

    with pytest.raises(Inexact):
        decide([], Asked(price, 3, 1, 1))
