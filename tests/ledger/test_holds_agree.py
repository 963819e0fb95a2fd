"""The functions in the database decide as `plugins/policy` states it, case by case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from itertools import product
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg.rows import namedtuple_row

from plugins.policy import windows
from plugins.policy.budget import EXACT, Asked, Budget, Held, Refused, decide
from plugins.policy.money import Price
from plugins.setup.postgres import EmbeddedPostgres

NOON = datetime(2026, 7, 15, 12, tzinfo=UTC)
BEFORE = NOON - timedelta(days=90)
#: Budgets of one unit each need a place of their own: scope and window.
PLACES = [*product(("tenant", "key"), ("day", "week", "month", "total"))]
FREE = Price(Decimal(0), Decimal(0))
CHEAP = Price(Decimal("1e-6"), Decimal("0.00000015"))
DEAR = Price(Decimal("0.00001"), Decimal("0.0001"))


@pytest.fixture(scope="module", name="conn")
def _conn(postgres: EmbeddedPostgres, ledger_template: str) -> Iterator[psycopg.Connection[Any]]:
    """A migrated database of this file's own; every case is rolled back."""
    with psycopg.connect(postgres.url, autocommit=True) as owner:
        owner.execute(f"CREATE DATABASE holds_agree TEMPLATE {ledger_template}")
        try:
            address = postgres.url.rpartition("/")[0] + "/holds_agree"
            with psycopg.connect(address, row_factory=namedtuple_row) as conn:
                yield conn
        finally:
            owner.execute("DROP DATABASE holds_agree WITH (FORCE)")


@dataclass(frozen=True)
class Decided:
    """What either side decides: a cap and what is held for it, or a refusal and whose it is."""

    verdict: str
    budget: tuple[str, str] | None = None  # scope, unit
    cap: int | None = None
    usd: Decimal | None = None
    tokens: Decimal | None = None
    held: tuple[Decimal, ...] = ()
    left: tuple[Decimal | None, Decimal | None] = (None, None)  # usd, tokens


def by_policy(budgets: Sequence[Budget], asked: Asked) -> Decided:
    result = decide(budgets, asked)
    if isinstance(result, Refused):
        if result.code == "price_missing":  # the database does not say under which budget
            return Decided(result.code)
        return Decided(result.code, (result.budget.name, result.budget.unit))
    with localcontext(EXACT):
        held = tuple(budget.held + amount(result, budget) for budget in budgets)
        left = tuple(
            min((b.room - amount(result, b) for b in budgets if b.unit == unit), default=None)
            for unit in ("usd", "tokens")
        )
    return Decided("held", None, result.cap, result.usd, result.tokens, held, left)


def amount(held: Held, budget: Budget) -> Decimal:
    found = held.amount(budget.unit)
    assert found is not None
    return found


def by_sql(
    conn: psycopg.Connection[Any], budgets: Sequence[Budget], asked: Asked, kinds: Sequence[str]
) -> Decided:
    """Decide the same by hold_v1, in a transaction that leaves nothing."""
    try:
        tenant, key, price = people(conn, asked.price)
        for number, (budget, kind) in enumerate(zip(budgets, kinds, strict=True)):
            place(conn, UUID(int=number), budget, kind, tenant, key)
        row: Any = conn.execute(
            "SELECT * FROM wicketgate.hold_v1(%s, %s, 1, true, true, %s, %s, NULL, NULL, NULL, 'm',"
            " %s, false, %s, %s, %s, %s, %s, %s, %s, interval '30 s', %s)",
            (
                *(uuid4(), uuid4(), tenant, key, price, asked.prompt, asked.writes_cache),
                *(asked.outputs, asked.cap, asked.floor, asked.usd_left, asked.tokens_left, NOON),
            ),
        ).fetchone()
        if row.verdict != "held":
            return Decided(row.verdict, (row.scope, row.unit) if row.scope else None)
        held = conn.execute(
            "SELECT held FROM wicketgate.budget_windows ORDER BY budget_id"
        ).fetchall()
        return Decided(
            *("held", None, row.cap, row.held_usd, Decimal(row.held_tokens)),
            tuple(one.held for one in held),
            (row.left_usd, row.left_tokens),
        )
    finally:
        conn.rollback()


def people(conn: psycopg.Connection[Any], price: Price) -> tuple[UUID, UUID, int]:
    row: Any = conn.execute(
        "WITH t AS (INSERT INTO wicketgate.tenants (name, zone) VALUES ('acme', 'UTC')"
        " RETURNING id), k AS (INSERT INTO wicketgate.keys (tenant_id, digest, prefix)"
        " SELECT id, sha256('x'), 'x' FROM t RETURNING id)"
        " SELECT t.id AS tenant, k.id AS key,"
        " wicketgate.price_v1('d', 'm', 'p', 'eu', %s, %s, %s, %s) AS price FROM t, k",
        (price.input, price.output, price.cached, price.cache_write),
    ).fetchone()
    return row.tenant, row.key, row.price


def place(
    conn: psycopg.Connection[Any],
    number: UUID,
    budget: Budget,
    kind: str,
    tenant: UUID,
    key: UUID,
) -> None:
    conn.execute(
        "INSERT INTO wicketgate.budgets (id, tenant_id, key_id, unit, limit_amount, window_kind,"
        " created_at) VALUES (%s, %s, %s, %s, %s, %s, %s)",
        (
            *(number, tenant, key if budget.name == "key" else None, budget.unit, budget.limit),
            *(kind, BEFORE),
        ),
    )
    conn.execute(
        "INSERT INTO wicketgate.budget_windows (budget_id, starts_at, used, held)"
        " VALUES (%s, %s, %s, %s)",
        (number, windows.start(kind, NOON, "UTC", BEFORE), budget.used, budget.held),
    )


def usd(limit: str, used: str = "0", held: str = "0", name: str = "tenant") -> Budget:
    return Budget(name, "usd", Decimal(limit), Decimal(used), Decimal(held))


def tokens(limit: int, used: int = 0, held: int = 0, name: str = "tenant") -> Budget:
    return Budget(name, "tokens", Decimal(limit), Decimal(used), Decimal(held))


def asked(price: Price = DEAR, prompt: int = 10, cap: int = 100, **more: Any) -> Asked:
    """At DEAR: 0.0001 for the prompt, and 0.01 for 100 tokens of output."""
    return Asked(price, prompt, cap, **{"floor": 16, **more})


TABLE = {
    "no budget, no bound": ([], asked(), "held", 100),
    "equal to the limit fits": ([usd("0.0101")], asked(), "held", 100),
    "one digit less is shrunk by one token": ([usd("0.0100999999")], asked(), "held", 99),
    "used and held both count": ([usd("1", "0.5", "0.4899")], asked(), "held", 100),
    "down to the floor it is shrunk": ([usd("0.0017")], asked(), "held", 16),
    "below the floor never fits": ([usd("0.00169")], asked(), "request_too_large", None),
    "below the floor for now": ([usd("1", "0.9984")], asked(), "budget_exceeded", None),
    "what just fits an empty window is not too large": (
        *([usd("0.0017", "0.0001")], asked()),
        *("budget_exceeded", None),
    ),
    "a cap below the floor is its own floor": ([usd("0.0011")], asked(cap=10), "held", 10),
    "a cap below the floor is not shrunk": (
        *([usd("1", "0.99891")], asked(cap=10)),
        *("budget_exceeded", None),
    ),
    "the prompt alone is over": ([usd("0.00009")], asked(), "request_too_large", None),
    "a limit of 0 is locked": ([usd("0")], asked(), "budget_exceeded", None),
    "a limit of 0 lets pass what is free": ([usd("0")], asked(FREE), "held", 100),
    "a spent budget lets pass what is free": ([usd("1", "1.5")], asked(FREE), "held", 100),
    "free tokens still count as tokens": (
        *([usd("0"), tokens(100)], asked(FREE)),
        *("held", 90),
    ),
    "a free prompt still pays for output": (
        *([usd("1", "1.5")], asked(Price(Decimal(0), Decimal("1e-6")))),
        *("budget_exceeded", None),
    ),
    "every output counts its cap": ([tokens(210)], asked(outputs=4), "held", 50),
    "every output counts its floor": (
        *([tokens(73)], asked(outputs=4)),
        *("request_too_large", None),
    ),
    "the tightest decides, wherever it stands": (
        *([tokens(60), usd("0.0041", name="key"), usd("1")], asked()),
        *("held", 40),
    ),
    "the first that refuses is named": (
        *([usd("1"), tokens(100, 90, name="key"), usd("0", name="key")], asked()),
        *("budget_exceeded", None),
    ),
    "no output price under money": (
        *([usd("1")], asked(Price(Decimal(0), None))),
        *("price_missing", None),
    ),
    "no input price under money": (
        *([usd("1")], asked(Price(None, Decimal(0)))),
        *("price_missing", None),
    ),
    "a price to write a cache is no input price": (
        *([usd("1")], asked(Price(None, Decimal(0), None, Decimal(0)), writes_cache=True)),
        *("price_missing", None),
    ),
    "no price under tokens alone": ([tokens(110)], asked(Price(None, None)), "held", 100),
    "no output needs no output price": (
        *([usd("0.0001")], asked(Price(Decimal("0.00001"), None), cap=0)),
        *("held", 0),
    ),
    "a cache is written at its own price": (
        *([usd("0.01")], asked(Price(Decimal(0), Decimal(0), None, Decimal("0.0011")))),
        *("held", 100),
    ),
    "a cache that is written is held at the dearer price": (
        *(
            [usd("0.01")],
            asked(Price(Decimal(0), Decimal(0), None, Decimal("0.0011")), writes_cache=True),
        ),
        *("request_too_large", None),
    ),
    "a cache dearer than the input is held at its price": (
        *([usd("0.01")], asked(Price(Decimal(0), Decimal(0), Decimal("0.0011")))),
        *("request_too_large", None),
    ),
    "a request's own money shrinks it": ([], asked(usd_left=Decimal("0.0051")), "held", 50),
    "a request's own tokens shrink it": ([], asked(tokens_left=Decimal(60)), "held", 50),
    "a request's own money is never too little for ever": (
        *([], asked(usd_left=Decimal("0.0001"))),
        *("budget_exceeded", None),
    ),
    "a request's own 0 is a limit": ([], asked(usd_left=Decimal(0)), "budget_exceeded", None),
    "a request's own money needs a price": (
        *([], asked(Price(None, None), usd_left=Decimal(1))),
        *("price_missing", None),
    ),
    "past its own money": ([], asked(usd_left=Decimal("-0.1")), "budget_exceeded", None),
    "a price of many digits is not rounded": (
        *([usd("0.000005")], asked(Price(Decimal(0), Decimal("0.0000001" + "0" * 30 + "1")))),
        *("held", 49),
    ),
}


@pytest.mark.parametrize(("budgets", "asks", "verdict", "cap"), TABLE.values(), ids=TABLE)
def test_both_decide_as_the_rule_says(
    conn: psycopg.Connection[Any],
    budgets: list[Budget],
    asks: Asked,
    verdict: str,
    cap: int | None,
) -> None:
    """The same verdict, cap and amounts, and the ones that the rule's name tells."""
    kinds = ["day"] * len(budgets) if len(budgets) < 3 else ["day", "week", "month"]
    stated = by_policy(budgets, asks)

    assert by_sql(conn, budgets, asks, kinds) == stated
    assert (stated.verdict, stated.cap) == (verdict, cap)


def money(digits: int = 12) -> st.SearchStrategy[Decimal]:
    """Amounts that meet often: few different sizes, many digits."""
    return st.builds(
        lambda number, power: Decimal(number).scaleb(-power),
        *(st.integers(0, 300), st.integers(0, digits)),
    )


PRICES = st.one_of(
    st.none(),
    st.sampled_from([Decimal(text) for text in ("0", "1e-6", "0.00000015", "0.00001", "2e-6")]),
    money(),
)


@st.composite
def covering(draw: st.DrawFn) -> list[tuple[Budget, str]]:
    """Up to four budgets with their windows; limits, used and held of one size."""
    found = []
    places = st.lists(
        st.tuples(st.sampled_from(PLACES), st.sampled_from(["usd", "tokens"])),
        max_size=4,
        unique=True,
    )
    for (name, kind), unit in draw(places):
        amounts = money(6) if unit == "usd" else st.integers(0, 5000).map(Decimal)
        budget = Budget(name, unit, draw(amounts), draw(amounts), draw(amounts))
        found.append((budget, kind))
    return found


ASKED = st.builds(
    Asked,
    price=st.builds(Price, PRICES, PRICES, PRICES, PRICES),
    prompt=st.integers(0, 5000),
    cap=st.one_of(st.just(0), st.integers(1, 5000)),
    floor=st.integers(1, 200),
    outputs=st.integers(1, 8),
    writes_cache=st.booleans(),
    usd_left=st.one_of(st.none(), money(6), money(6).map(lambda left: -left)),
    tokens_left=st.one_of(st.none(), st.integers(-10, 5000).map(Decimal)),
)


@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(budgets=covering(), asks=ASKED)
@example(budgets=[(usd("0.00000015"), "day")], asks=Asked(CHEAP, 0, 1, 1))
@example(budgets=[(usd("0.00000045"), "day")], asks=Asked(CHEAP, 0, 1000, 1, 3))
def test_both_decide_alike_whatever_is_asked(
    conn: psycopg.Connection[Any], budgets: list[tuple[Budget, str]], asks: Asked
) -> None:
    """Any limits, prices, caps, floors and numbers of outputs."""
    plain = [budget for budget, _ in budgets]

    assert by_sql(conn, plain, asks, [kind for _, kind in budgets]) == by_policy(plain, asks)


# Windows

#: Zone -> moments around which something happens there: clocks change, at midnight too.
CHANGES = {
    "Europe/Berlin": ("2026-03-29T01:00Z", "2026-10-25T01:00Z"),
    "America/New_York": ("2026-03-08T07:00Z", "2026-11-01T06:00Z"),
    "Asia/Tokyo": ("2026-07-31T15:00Z", "2028-02-29T15:00Z"),
    "Australia/Lord_Howe": ("2026-04-04T15:00Z", "2026-10-03T15:30Z"),
    # Until 2019 clocks went forward from 00:00 and back to 23:00 of the day before.
    "America/Sao_Paulo": ("2018-02-18T02:00Z", "2018-11-04T03:00Z", "2026-05-31T03:00Z"),
    "Asia/Kathmandu": ("2026-06-30T18:15Z", "2026-12-31T18:15Z"),
    # Clocks go back from 01:00 to 00:00: that day has two midnights.
    "Atlantic/Azores": ("2026-03-29T01:00Z", "2026-10-25T01:00Z"),
    "America/Havana": ("2026-03-08T05:00Z", "2026-11-01T05:00Z"),
    # Skipped 30 December 2011.
    "Pacific/Apia": ("2011-12-30T10:00Z",),
}
HOURS = [timedelta(minutes=30 * step) for step in range(-64, 65)]
EDGES = [timedelta(microseconds=step) for step in (-1, 1)]


@pytest.mark.parametrize("kind", ["day", "week", "month", "total"])
@pytest.mark.parametrize("zone", CHANGES)
def test_windows_begin_and_end_alike(conn: psycopg.Connection[Any], zone: str, kind: str) -> None:
    """Each half hour of the 64 around a change of clocks, and the instants next to it."""
    moments = [
        datetime.fromisoformat(text) + away for text in CHANGES[zone] for away in HOURS + EDGES
    ]
    rows = conn.execute(
        "SELECT wicketgate.window_start(%s, %s, at, %s) AS starts,"
        " wicketgate.window_end(%s, %s, at) AS ends FROM unnest(%s::timestamptz[]) AS at",
        (kind, zone, BEFORE, kind, zone, moments),
    ).fetchall()

    stated = [
        (windows.start(kind, at, zone, BEFORE), windows.end(kind, at, zone)) for at in moments
    ]
    assert [tuple(row) for row in rows] == stated
    if kind != "total":
        assert all(
            starts <= at < ends
            for at, (starts, ends) in zip(moments, stated, strict=True)
            if ends is not None
        )


@pytest.mark.parametrize(
    ("raised", "until"),
    [(None, None), (Decimal(0), NOON), (Decimal(9), NOON)],
    ids=["no raise", "lowered to 0", "raised"],
)
def test_a_raise_ends_alike(
    conn: psycopg.Connection[Any], raised: Decimal | None, until: datetime | None
) -> None:
    """Just before its end, at it and after it."""
    moments = [NOON + away for away in (*EDGES, timedelta(0))]
    rows = conn.execute(
        "SELECT wicketgate.limit_at(5, %s, %s, at) AS bound FROM unnest(%s::timestamptz[]) AS at",
        (raised, until, moments),
    ).fetchall()

    assert [row.bound for row in rows] == [
        windows.limit_at(Decimal(5), raised, until, at) for at in moments
    ]
