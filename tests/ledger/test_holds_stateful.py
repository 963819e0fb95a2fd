"""Any order of holds, settlements, crashes, midnights and price changes, against a model.

The model knows two sums for each window and finds a cap by trying every one. It shares
nothing with the functions, nor with `plugins/policy/budget.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg.rows import namedtuple_row

from tests.ledger.settled import one

EVENING = datetime(2026, 7, 15, 23, 57, tzinfo=UTC)
LEASE = timedelta(seconds=30)
PRICES = [Decimal(text) for text in ("0", "1e-6", "0.00000015", "0.00001")]
#: Unit -> the limit of a day, and of all days.
LIMITS = {
    "usd": st.sampled_from([Decimal(text) for text in ("0", "0.0004", "0.00100005", "1")]),
    "tokens": st.sampled_from([Decimal(text) for text in ("90", "400", "100000")]),
}
Window = tuple[str, date | None]  # unit; the day, None for all days


@dataclass
class Open:
    """An attempt under way, as the model has it."""

    windows: list[Window]
    input: Decimal
    output: Decimal
    prompt: int
    completion: int

    def amounts(self, prompt: int, completion: int) -> dict[str, Decimal]:
        cost = prompt * self.input + completion * self.output
        return {"usd": cost, "tokens": Decimal(prompt + completion)}


class Model:
    """Two budgets: dollars a day, and tokens for good."""

    def __init__(self, limits: dict[str, Decimal]) -> None:
        self.limits = limits
        self.used: dict[Window, Decimal] = defaultdict(Decimal)
        self.held: dict[Window, Decimal] = defaultdict(Decimal)

    def fits(self, windows: list[Window], amounts: dict[str, Decimal]) -> bool:
        return all(
            amounts[window[0]] == 0
            or self.used[window] + self.held[window] + amounts[window[0]] <= self.limits[window[0]]
            for window in windows
        )

    def hold(self, asked: Open, cap: int, floor: int, outputs: int) -> int | None:
        for fit in range(cap, min(floor, cap) - 1, -1):
            amounts = asked.amounts(asked.prompt, outputs * fit)
            if self.fits(asked.windows, amounts):
                asked.completion = outputs * fit
                for window in asked.windows:
                    self.held[window] += amounts[window[0]]
                return fit
        return None

    def settle(self, held: Open, prompt: int, completion: int) -> None:
        for window in held.windows:
            self.held[window] -= held.amounts(held.prompt, held.completion)[window[0]]
            self.used[window] += held.amounts(prompt, completion)[window[0]]


class Holds(RuleBasedStateMachine):
    """Each example is one transaction, rolled back at its end."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        super().__init__()
        self.conn = conn
        self.at = EVENING
        self.numbers = count(1)
        self.open: dict[UUID, Open] = {}
        self.closed: dict[UUID, str] = {}  # id -> status

    @initialize(usd=LIMITS["usd"], tokens=LIMITS["tokens"], output=st.sampled_from(PRICES))
    def begin(self, usd: Decimal, tokens: Decimal, output: Decimal) -> None:
        self.model = Model({"usd": usd, "tokens": tokens})
        self.tenant = one(
            self.conn,
            "INSERT INTO wicketgate.tenants (name, zone) VALUES ('acme', 'UTC') RETURNING id",
            (),
        )
        self.key = one(
            self.conn,
            "INSERT INTO wicketgate.keys (tenant_id, digest, prefix)"
            " VALUES (%s, sha256('x'), 'x') RETURNING id",
            (self.tenant,),
        )
        for unit, limit, kind in (("usd", usd, "day"), ("tokens", tokens, "total")):
            self.conn.execute(
                "INSERT INTO wicketgate.budgets (tenant_id, unit, limit_amount, window_kind,"
                " created_at) VALUES (%s, %s, %s, %s, %s)",
                (self.tenant, unit, limit, kind, EVENING),
            )
        self.change_price(Decimal("0.000002"), output)

    @rule(input=st.sampled_from(PRICES), output=st.sampled_from(PRICES))
    def change_price(self, input: Decimal, output: Decimal) -> None:  # noqa: A002
        """What is under way keeps the price it was admitted at."""
        self.prices = (input, output)
        self.price = one(
            self.conn,
            "SELECT wicketgate.price_v1('d', 'm', 'p', 'eu', %s, %s, NULL, NULL)",
            self.prices,
        )

    @rule(
        prompt=st.integers(0, 40),
        cap=st.integers(1, 60),
        floor=st.integers(1, 30),
        outputs=st.integers(1, 3),
    )
    def hold(self, prompt: int, cap: int, floor: int, outputs: int) -> None:
        asked = Open([("usd", self.at.date()), ("tokens", None)], *self.prices, prompt, 0)
        fit = self.model.hold(asked, cap, floor, outputs)
        # Not a random id: a failing order must be found again.
        attempt = UUID(int=next(self.numbers))

        row: Any = self.conn.execute(
            "SELECT verdict, cap, held_usd, held_tokens FROM wicketgate.hold_v1(%s, %s, 1, true,"
            " true, %s, %s, NULL, NULL, NULL, 'm', %s, false, %s, false, %s, %s, %s, NULL, NULL,"
            " %s, %s)",
            (
                *(attempt, uuid4(), self.tenant, self.key, self.price, prompt, outputs, cap),
                *(floor, LEASE, self.at),
            ),
        ).fetchone()

        assert (row.verdict == "held", row.cap) == (fit is not None, fit)
        if fit is not None:
            amounts = asked.amounts(prompt, asked.completion)
            assert (row.held_usd, row.held_tokens) == (amounts["usd"], amounts["tokens"])
            self.open[attempt] = asked

    @precondition(lambda self: self.open)
    @rule(
        data=st.data(),
        status=st.sampled_from(["ok", "ok", "partial", "failed", "cancelled", "void"]),
    )
    def settle(self, data: st.DataObject, status: str) -> None:
        """At what it used; a void attempt used nothing, whatever is said of it."""
        attempt, held = data.draw(st.sampled_from(sorted(self.open.items())), "attempt")
        # A provider may count more than was held, and that is charged.
        completion = data.draw(st.integers(0, held.completion + 5), "completion")
        prompt = data.draw(st.integers(0, held.prompt), "prompt")
        if status == "failed":
            prompt = completion = 0

        assert self.settled(attempt, status, prompt, completion, held) is True

        if status == "void":
            prompt = completion = 0
        self.model.settle(self.open.pop(attempt), prompt, completion)
        self.closed[attempt] = status

    @precondition(lambda self: self.closed)
    @rule(data=st.data(), status=st.sampled_from(["ok", "void"]))
    def settle_again(self, data: st.DataObject, status: str) -> None:
        """Whoever comes second changes nothing."""
        attempt = data.draw(st.sampled_from(sorted(self.closed)), "attempt")

        assert self.settled(attempt, status, 5, 5, Open([], *self.prices, 5, 5)) is False

    def settled(self, attempt: UUID, status: str, prompt: int, completion: int, held: Open) -> bool:
        cost = held.amounts(prompt, completion)["usd"]
        settled: bool = one(
            self.conn,
            "SELECT settled FROM wicketgate.settle_v1(%s, %s, 'provider', NULL, %s, 0, 0, %s, 0,"
            " %s, %s, NULL, NULL, NULL, %s)",
            (attempt, status, prompt, completion, cost, cost, self.at),
        )
        return settled

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """A worker dies; when the lease is over its attempts, and no others, are swept."""
        dead = data.draw(st.sets(st.sampled_from(sorted(self.open)), min_size=1), "dead")
        self.at += LEASE + timedelta(seconds=1)
        self.conn.execute(
            "UPDATE wicketgate.open_attempts SET lease_until = %s WHERE id <> ALL(%s)",
            (self.at + LEASE, [*dead]),
        )

        swept = set()
        while attempt := one(self.conn, "SELECT wicketgate.sweep_v1(%s)", (self.at,)):
            swept.add(attempt)

        assert swept == dead
        for attempt in dead:
            held = self.open.pop(attempt)
            self.model.settle(held, held.prompt, held.completion)
            self.closed[attempt] = "abandoned"

    @rule()
    def next_day(self) -> None:
        """Attempts under way stay where they were admitted; workers renew their leases."""
        self.at += timedelta(days=1)
        self.conn.execute(
            "UPDATE wicketgate.open_attempts SET lease_until = %s", (self.at + LEASE,)
        )

    @invariant()
    def sums_are_the_models(self) -> None:
        """Used and held of every window, and nothing below zero."""
        rows = self.conn.execute(
            "SELECT unit, CASE unit WHEN 'usd' THEN (starts_at AT TIME ZONE 'UTC')::date END"
            " AS day, used, held"
            " FROM wicketgate.budget_windows JOIN wicketgate.budgets b ON b.id = budget_id"
        ).fetchall()

        assert all(row.used >= 0 and row.held >= 0 for row in rows)
        found = {(row.unit, row.day): (row.used, row.held) for row in rows}
        stated = {w: (self.model.used[w], self.model.held[w]) for w in [*self.model.held, *found]}
        assert {w: s for w, s in found.items() if any(s)} == {
            w: s for w, s in stated.items() if any(s)
        }

    @invariant()
    def used_is_the_sum_of_rows(self) -> None:
        """In every window, and in the sums by quarter of an hour."""
        rows = self.conn.execute(
            "SELECT unit, w.used, (SELECT coalesce(sum(CASE unit WHEN 'usd' THEN cost_usd"
            " ELSE prompt_tokens + completion_tokens END), 0) FROM wicketgate.attempts a"
            " WHERE b.id = ANY(a.budget_ids) AND (window_kind = 'total'"
            " OR date_trunc('day', admitted_at, 'UTC') = w.starts_at)) AS charged"
            " FROM wicketgate.budget_windows w JOIN wicketgate.budgets b ON b.id = w.budget_id"
        ).fetchall()

        assert [row.used for row in rows] == [row.charged for row in rows]
        sums = "coalesce(sum(cost_usd), 0) AS cost, coalesce(sum({}), 0) AS n"
        quarters, attempts = (
            self.conn.execute(
                f"SELECT {sums.format(what)}, coalesce(sum(completion_tokens), 0) AS tokens"
                f" FROM wicketgate.{table}"
            ).fetchone()
            for table, what in (("spend_quarters", "attempts"), ("attempts", "1"))
        )
        assert quarters == attempts

    @invariant()
    def each_attempt_is_open_or_has_one_row(self) -> None:
        """But a void one has none."""
        opened = self.conn.execute("SELECT id FROM wicketgate.open_attempts").fetchall()
        rows = self.conn.execute("SELECT id, status FROM wicketgate.attempts").fetchall()

        assert {row.id for row in opened} == set(self.open)
        assert sorted(rows) == sorted(
            (attempt, status) for attempt, status in self.closed.items() if status != "void"
        )

    def teardown(self) -> None:
        self.conn.rollback()


@pytest.fixture(name="conn")
def _conn(ledger_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(ledger_url, row_factory=namedtuple_row) as conn:
        yield conn


@pytest.mark.timeout(400)  # it takes 10 s; a failure may be made smaller for five minutes
def test_whatever_happens_in_whatever_order(conn: psycopg.Connection[Any]) -> None:
    """The same verdicts and sums as the model, after every step."""
    run_state_machine_as_test(
        lambda: Holds(conn),
        settings=settings(
            max_examples=150,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
        ),
    )
