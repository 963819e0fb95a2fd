"""The views at five million attempts: each question finance asks stays under a second."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from time import perf_counter

import psycopg
import pytest

from tests.ledger.settled import Shop

ATTEMPTS = 5_000_000
TENANTS = 20
QUESTIONS = (
    "SELECT * FROM finance.spend_daily",
    "SELECT * FROM finance.spend_daily WHERE tenant = 't-1'",
    "SELECT * FROM finance.attempts ORDER BY admitted_at DESC LIMIT 100",
    "SELECT * FROM finance.requests ORDER BY admitted_at DESC LIMIT 100",
    "SELECT sum(cost_usd) FROM finance.attempts"
    " WHERE admitted_at >= '2026-05-20Z' AND admitted_at < '2026-05-21Z'",
    "SELECT sum(cost_usd), count(*) FROM finance.requests"
    " WHERE tenant = 't-1' AND admitted_at >= '2026-05-20Z' AND admitted_at < '2026-05-27Z'",
    "SELECT * FROM finance.requests"
    " WHERE request_id = (SELECT request_id FROM finance.attempts LIMIT 1)",
    "SELECT * FROM finance.spend_by_task",
    "SELECT * FROM finance.cost_per_finished_task",
    "SELECT * FROM finance.budgets",
)


def seed(conn: psycopg.Connection, price: int) -> None:
    """Fill April and May of 2026, and add the attempts up as settlements do."""
    for month in ("2026-04-01Z", "2026-05-01Z"):
        conn.execute("SELECT wicketgate.make_partition(%s)", (month,))
    conn.execute(
        "INSERT INTO wicketgate.tasks (tenant_id, name, task_type, state)"
        " SELECT id, 'task-' || g, 'sum', (ARRAY['open', 'finished', 'failed'])[1 + g % 3]"
        " FROM wicketgate.tenants, generate_series(1, 2500) g"
    )
    conn.execute(
        "INSERT INTO wicketgate.attempts"
        " SELECT gen_random_uuid(), gen_random_uuid(), 1, k.tenant_id, k.id, NULL, 'sum', 'm',"
        " 'd-1', 'm', 'p', 'eu', %s, false, 'ok', 'provider', NULL, 100, 10, 0, 50, 0, 0.000123,"
        " 0.000123, NULL, 0.001, 200, NULL, at, NULL, at + interval '2 s', '{}'"
        " FROM (SELECT g %% %s AS n, '2026-04-01Z'::timestamptz + g * interval '61 days' / %s AS at"
        "     FROM generate_series(1, %s) g) a"
        " JOIN (SELECT id, tenant_id, row_number() OVER () - 1 AS n FROM wicketgate.keys) k"
        " USING (n)",
        (price, TENANTS, ATTEMPTS + 1, ATTEMPTS),
    )
    conn.execute(
        "INSERT INTO wicketgate.spend_quarters"
        " SELECT date_bin('15 minutes', admitted_at, '2000-01-01Z'), tenant_id, key_id, task_type,"
        " deployment, model, provider, 0, count(*), count(*), count(*), count(*),"
        " sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens), sum(cost_usd), 0"
        " FROM wicketgate.attempts GROUP BY 1, 2, 3, 4, 5, 6, 7"
    )
    conn.execute("VACUUM ANALYZE")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_five_million_attempts(open_shop: Callable[..., Shop], ledger_url: str) -> None:
    """Every question is answered in less than a second; its plan is shown."""
    zones = ("UTC", "Europe/Berlin", "Asia/Kolkata", "America/Los_Angeles")
    shops = [open_shop(f"t-{number}", zones[number % 4]) for number in range(TENANTS)]
    with psycopg.connect(ledger_url, autocommit=True) as conn:
        seed(conn, shops[0].price)
        total = conn.execute("SELECT sum(attempts), sum(cost_usd) FROM finance.spend_daily")
        assert total.fetchone() == (ATTEMPTS, ATTEMPTS * Decimal("0.000123"))
        for question in QUESTIONS:
            taken = []
            for _ in range(2):
                start = perf_counter()
                conn.execute(question).fetchall()
                taken.append(perf_counter() - start)
            plan = conn.execute(f"EXPLAIN {question}").fetchall()
            shown = "\n".join([f"{min(taken):.3f} s  {question}", *(f"    {p}" for (p,) in plan)])
            print(shown)
            assert min(taken) < 1, shown
