"""The functions that hold and settle, on a real PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

NOON = datetime(2026, 7, 15, 12, tzinfo=UTC)
PRICE = Decimal("0.00001")


class Ledger:
    def __init__(self, url: str, zone: str = "UTC") -> None:
        self.url = url
        (tenant,) = self.ask(
            "INSERT INTO wicketgate.tenants (name, zone) VALUES ('acme', %s) RETURNING id", zone
        )
        self.tenant: UUID = tenant["id"]
        (key,) = self.ask(
            "INSERT INTO wicketgate.keys (tenant_id, digest, prefix)"
            " VALUES (%s, sha256('x'), 'x') RETURNING id",
            self.tenant,
        )
        self.key: UUID = key["id"]
        self.price = self.priced(PRICE)

    def ask(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        with psycopg.connect(self.url, autocommit=True, row_factory=dict_row) as conn:
            cursor = conn.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def priced(self, output: Decimal | None) -> int:
        (row,) = self.ask(
            "SELECT wicketgate.price_v1('d', 'm', 'p', 'eu', 0, %s, NULL, NULL) AS id", output
        )
        number: int = row["id"]
        return number

    def budget(self, limit: str, window: str = "day", unit: str = "usd", **more: Any) -> UUID:
        names = "".join(f", {name}" for name in more)
        (row,) = self.ask(
            "INSERT INTO wicketgate.budgets (tenant_id, unit, limit_amount, window_kind, created_at"
            f"{names}) VALUES (%s, %s, %s, %s, %s{', %s' * len(more)}) RETURNING id",
            *(self.tenant, unit, Decimal(limit), window, NOON - timedelta(days=90)),
            *more.values(),
        )
        found: UUID = row["id"]
        return found

    def hold(
        self, cap: int, at: datetime = NOON, *, floor: int = 16, **more: Any
    ) -> dict[str, Any]:
        identifier = uuid4()
        (row,) = self.ask(
            "SELECT * FROM wicketgate.hold_v1(%s, %s, 1, true, true, %s, %s, %s, %s, %s, 'm', %s,"
            " false, 10, false, 1, %s, %s, %s, NULL, interval '30 s', %s)",
            *(identifier, uuid4(), self.tenant, self.key, more.get("task"), more.get("task_type")),
            *(more.get("task_budget"), more.get("price", self.price), cap, floor),
            *(more.get("usd_left"), at),
        )
        return {**row, "id": identifier}

    def settle(
        self, held: dict[str, Any], tokens: int, status: str = "ok", at: datetime = NOON
    ) -> dict[str, Any]:
        cost = tokens * PRICE
        (row,) = self.ask(
            "SELECT * FROM wicketgate.settle_v1(%s, %s, 'provider', NULL, 0, 0, 0, %s, 0, %s, %s,"
            " NULL, NULL, NULL, %s)",
            *(held["id"], status, tokens, cost, cost, at),
        )
        return row

    def windows(self, budget: UUID) -> list[tuple[Decimal, Decimal]]:
        rows = self.ask(
            "SELECT used, held FROM wicketgate.budget_windows WHERE budget_id = %s"
            " ORDER BY starts_at",
            budget,
        )
        return [(row["used"], row["held"]) for row in rows]


@pytest.fixture(name="ledger")
def _ledger(ledger_url: str) -> Ledger:
    return Ledger(ledger_url)


def test_fifty_at_once_through_room_for_ten(ledger: Ledger) -> None:
    """However many ask at one moment, what is held never passes the limit."""
    budget = ledger.budget("0.01")

    with ThreadPoolExecutor(50) as pool:
        verdicts = [held["verdict"] for held in pool.map(ledger.hold, [100] * 50)]

    assert verdicts.count("held") == 10
    assert ledger.windows(budget) == [(0, Decimal("0.01"))]


def test_two_budgets_locked_from_many_sides(ledger: Ledger) -> None:
    """Calls under several budgets, held and settled at once, never wait in a ring."""
    budgets = [
        ledger.budget("1"),
        ledger.budget("1", "month"),
        ledger.budget("9999", unit="tokens"),
    ]

    def work(_number: int) -> bool:
        return bool(ledger.settle(ledger.hold(100), 50)["settled"])

    with ThreadPoolExecutor(20) as pool:
        assert all(pool.map(work, range(60)))

    assert [ledger.windows(budget) for budget in budgets] == [
        [(60 * 50 * PRICE, 0)],
        [(60 * 50 * PRICE, 0)],
        [(60 * 50, 0)],
    ]


def test_an_attempt_is_settled_once(ledger: Ledger) -> None:
    """A second settlement finds nothing: one row, one charge."""
    budget = ledger.budget("1")
    held = ledger.hold(100)

    assert ledger.settle(held, 40)["settled"] is True
    assert ledger.settle(held, 40)["settled"] is False

    assert ledger.windows(budget) == [(40 * PRICE, 0)]
    (row,) = ledger.ask("SELECT * FROM wicketgate.attempts")
    assert (row["cost_usd"], row["held_usd"]) == (40 * PRICE, 100 * PRICE)
    (sums,) = ledger.ask("SELECT * FROM wicketgate.spend_quarters")
    assert (sums["attempts"], sums["requests"], sums["cost_usd"]) == (1, 1, 40 * PRICE)


def test_what_was_never_sent_leaves_no_row(ledger: Ledger) -> None:
    """A void attempt gives back what it held, and that is all."""
    budget = ledger.budget("1")

    assert ledger.settle(ledger.hold(100), 0, "void")["settled"] is True

    assert ledger.windows(budget) == [(0, 0)]
    assert ledger.ask("SELECT * FROM wicketgate.attempts") == []


def test_the_sweep_closes_what_a_dead_worker_left(ledger: Ledger) -> None:
    """Once the lease is over, at all that was held, marked as abandoned."""
    budget = ledger.budget("1")
    held = ledger.hold(100)

    def sweep(seconds: int) -> object:
        (row,) = ledger.ask(
            "SELECT wicketgate.sweep_v1(%s) AS id", NOON + timedelta(seconds=seconds)
        )
        return row["id"]

    assert sweep(30) is None
    assert sweep(31) == held["id"]
    assert sweep(31) is None
    assert ledger.windows(budget) == [(100 * PRICE, 0)]
    (row,) = ledger.ask("SELECT * FROM wicketgate.attempts")
    assert (row["status"], row["usage_source"], row["cost_usd"]) == (
        *("abandoned", "estimated"),
        100 * PRICE,
    )


def test_a_call_over_midnight_belongs_to_its_first_day(ledger: Ledger) -> None:
    """O-06: what was admitted on day N is charged there, whenever it ends."""
    budget = ledger.budget("0.05")
    late = datetime(2026, 7, 15, 23, 59, 50, tzinfo=UTC)
    x = ledger.hold(3000, late)
    y = ledger.hold(4000, late + timedelta(seconds=15))

    ledger.settle(y, 1000, at=late + timedelta(seconds=15))
    ledger.settle(x, 3000, at=late + timedelta(seconds=20))

    assert (x["verdict"], y["verdict"]) == ("held", "held")
    assert ledger.windows(budget) == [(Decimal("0.03"), 0), (Decimal("0.01"), 0)]
    rows = ledger.ask("SELECT admitted_at FROM wicketgate.attempts ORDER BY admitted_at")
    assert rows[0]["admitted_at"] == late


@pytest.mark.parametrize(
    ("zone", "boundary"),
    [
        ("Asia/Tokyo", datetime(2026, 7, 31, 15, tzinfo=UTC)),
        ("America/New_York", datetime(2026, 8, 1, 4, tzinfo=UTC)),
    ],
)
def test_a_month_ends_where_the_tenant_is(ledger_url: str, zone: str, boundary: datetime) -> None:
    """O-05: refused to the last second, with the wait; served from the first of the new one."""
    ledger = Ledger(ledger_url, zone)
    budget = ledger.budget("0.05", "month")
    for _ in range(5):
        ledger.settle(ledger.hold(1000, NOON), 1000)

    for seconds in (2, 1):
        turned = ledger.hold(1000, boundary - timedelta(seconds=seconds))
        assert (turned["verdict"], turned["resets_at"]) == ("budget_exceeded", boundary)
    for _ in range(6):
        ledger.settle(ledger.hold(1000, boundary), 500, at=boundary)

    assert ledger.windows(budget) == [(Decimal("0.05"), 0), (Decimal("0.03"), 0)]


@pytest.mark.parametrize(
    ("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-07-01", 24)]
)
def test_a_day_has_as_many_hours_as_its_zone_gives_it(ledger: Ledger, day: str, hours: int) -> None:
    """Where clocks change, a day's window is 23 or 25 hours long."""
    at = datetime.fromisoformat(f"{day}T12:00:00+00:00")
    (row,) = ledger.ask(
        "SELECT wicketgate.window_end('day', 'Europe/Berlin', %s)"
        " - wicketgate.window_start('day', 'Europe/Berlin', %s, %s) AS length",
        *(at, at, at),
    )

    assert row["length"] == timedelta(hours=hours)


def test_a_raise_ends(ledger: Ledger) -> None:
    """Until its end the raised limit counts, afterwards the old one."""
    ledger.budget("0.001", "total", raised_to=Decimal(1), raised_until=NOON + timedelta(hours=1))

    assert ledger.hold(1000, NOON)["verdict"] == "held"
    assert ledger.hold(1000, NOON + timedelta(hours=1))["verdict"] == "budget_exceeded"


def test_a_budget_warns_once_for_each_level_and_window(ledger: Ledger) -> None:
    """At 80 and at 95 % of the limit, by whichever replica gets there first."""
    ledger.budget("0.01")
    levels = []
    for tokens in (700, 100, 50, 100, 10):
        told = ledger.settle(ledger.hold(tokens, floor=1), tokens)["warnings"] or []
        levels.append([warning["level"] for warning in told])

    assert levels == [[], [80], [], [95], []]


def test_a_task_begins_with_its_types_budget(ledger: Ledger) -> None:
    """The first call opens the task with it; a first call that does not fit opens nothing."""
    budget = '{"unit": "usd", "limit": "0.002", "window": "total", "on_exhausted": "refuse"}'
    big = ledger.hold(400, task="a", task_type="t", task_budget=budget, floor=400)
    first = ledger.hold(100, task="b", task_type="t", task_budget=budget)
    second = ledger.hold(400, task="b", task_type="t", task_budget=budget)

    assert (big["verdict"], big["scope"]) == ("request_too_large", "task")
    assert (first["verdict"], first["left_usd"]) == ("held", Decimal("0.001"))
    assert (second["verdict"], second["cap"]) == ("held", 100)
    assert [row["name"] for row in ledger.ask("SELECT name FROM wicketgate.tasks")] == ["b"]


def test_a_price_that_stays_makes_no_revision(ledger: Ledger) -> None:
    """Only a change is written down, and rows keep what they were charged at."""
    before = ledger.hold(100)

    assert ledger.priced(PRICE) == ledger.price
    dearer = ledger.priced(2 * PRICE)
    assert dearer != ledger.price
    ledger.settle(before, 10)

    (row,) = ledger.ask("SELECT price_id FROM wicketgate.attempts")
    assert row["price_id"] == ledger.price
    assert ledger.hold(100, price=dearer)["held_usd"] == 200 * PRICE


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE wicketgate.{} SET cost_usd = 0",
        "DELETE FROM wicketgate.{}",
        "TRUNCATE wicketgate.{}",
    ],
)
def test_rows_stay_as_they_are(ledger: Ledger, statement: str) -> None:
    """The ledger is append-only, in each of its monthly parts too."""
    ledger.settle(ledger.hold(100, datetime.now(UTC)), 10, at=datetime.now(UTC))
    (part,) = ledger.ask("SELECT tableoid::regclass::text AS name FROM wicketgate.attempts")

    for table in ("attempts", part["name"].removeprefix("wicketgate.")):
        with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
            ledger.ask(statement.format(table))


def test_nothing_is_held_below_zero(ledger: Ledger) -> None:
    """A hold that is given back twice is impossible by constraint."""
    budget = ledger.budget("1")
    ledger.hold(100)

    with pytest.raises(psycopg.errors.CheckViolation):
        ledger.ask("UPDATE wicketgate.budget_windows SET held = -1 WHERE budget_id = %s", budget)
