"""What finance reads: the views, what their reader may not do, and what nobody may alter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, RestrictViolation
from psycopg.rows import dict_row

from plugins.ledger import migrate
from plugins.setup.postgres import EmbeddedPostgres
from tests.databases import visitor
from tests.ledger.settled import Shop
from tests.ledger.test_spend import ROWS

OpenShop = Callable[..., Shop]
VIEWS = (
    *("adjustments", "attempts", "audit", "budgets", "cost_per_finished_task"),
    *("price_revisions", "requests", "spend_by_task", "spend_daily", "unit_cost"),
)


def read(url: str, statement: str) -> list[dict[str, Any]]:
    with psycopg.connect(url, row_factory=dict_row) as conn:
        return conn.execute(statement).fetchall()


@contextmanager
def reader(postgres: EmbeddedPostgres, url: str) -> Iterator[psycopg.Connection[Any]]:
    """Give the connection of someone who was granted finance_reader, and nothing else."""
    with visitor(postgres, url) as theirs:
        name = theirs.partition("//")[2].partition(":")[0]
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(f"GRANT finance_reader TO {name}")
        with psycopg.connect(theirs, autocommit=True) as conn:
            yield conn


def test_the_reader_reads_every_view(
    open_shop: OpenShop, postgres: EmbeddedPostgres, ledger_url: str
) -> None:
    """Each of them, with rows in it, functions and all."""
    acme = open_shop()
    acme.run(
        "INSERT INTO wicketgate.budgets (tenant_id, unit, limit_amount, window_kind)"
        f" VALUES ('{acme.tenant}', 'usd', 1, 'day')"
    )
    acme.call("0.1", task="t")
    acme.hold()

    with reader(postgres, ledger_url) as conn:
        listed = conn.execute(
            "SELECT table_name FROM information_schema.views WHERE table_schema = 'finance'"
        ).fetchall()
        counts = {
            view: conn.execute(f"SELECT count(*) FROM finance.{view}").fetchone() for view in VIEWS
        }
        [budget] = conn.execute('SELECT used, held, "limit" FROM finance.budgets').fetchall()

    assert sorted(name for (name,) in listed) == list(VIEWS)
    assert counts["attempts"] == (2,)
    assert counts["requests"] == counts["spend_by_task"] == counts["spend_daily"] == (1,)
    assert budget == (Decimal("0.1"), Decimal("0.000013"), Decimal(1))


def tables(url: str) -> list[str]:
    return [
        row["tablename"]
        for row in read(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'wicketgate'")
    ]


def test_the_reader_reads_nothing_else(
    open_shop: OpenShop, postgres: EmbeddedPostgres, ledger_url: str
) -> None:
    """No table of ours, no function, and nothing to write to."""
    acme = open_shop()
    acme.call("0.1")
    statements = [
        *(f"SELECT FROM wicketgate.{table}" for table in tables(ledger_url)),
        "SELECT wicketgate.sweep_v1(NULL)",
        "SELECT wicketgate.make_partition(now())",
        *(f"DELETE FROM finance.{view}" for view in ("audit", "price_revisions", "unit_cost")),
        "UPDATE finance.price_revisions SET input_price = 0",
        "INSERT INTO finance.unit_cost (deployment, usd_per_hour) VALUES ('x', 1)",
        "CREATE TABLE finance.mine (x int)",
        "CREATE TABLE wicketgate.mine (x int)",
    ]

    with reader(postgres, ledger_url) as conn:
        for statement in statements:
            with pytest.raises(InsufficientPrivilege):
                conn.execute(statement)


def test_a_stranger_reads_no_view(
    open_shop: OpenShop, postgres: EmbeddedPostgres, ledger_url: str
) -> None:
    """Whoever may log in is not finance."""
    open_shop()
    with (
        visitor(postgres, ledger_url) as url,
        psycopg.connect(url, autocommit=True) as conn,
        pytest.raises(InsufficientPrivilege),
    ):
        conn.execute("SELECT FROM finance.requests")


@pytest.mark.parametrize("table", ["attempts", "adjustments", "price_revisions", "hosting"])
@pytest.mark.parametrize("change", ["UPDATE {} SET {}", "DELETE FROM {}", "TRUNCATE {} CASCADE"])
def test_append_only(
    table: str, change: str, open_shop: OpenShop, ledger_url: str
) -> None:  # fmt: skip
    """Not even the owner alters or removes a row of the ledger."""
    acme = open_shop()
    acme.call("0.1")
    column = {"attempts": "cost_usd = 0", "adjustments": "amount_usd = 0"}
    setting = column.get(table, "deployment = ''")

    with pytest.raises(RestrictViolation):
        acme.run(change.format(f"wicketgate.{table}", setting))


@pytest.mark.parametrize("change", ["UPDATE {} SET cost_usd = 0", "DELETE FROM {}", "TRUNCATE {}"])
@pytest.mark.parametrize("month", [None, "2020-01-15T00:00Z"])
def test_append_only_in_each_partition(
    month: str | None, change: str, open_shop: OpenShop
) -> None:  # fmt: skip
    """A partition is no way around, nor is the one for months without their own."""
    acme = open_shop()
    acme.call("0.1", at=month)
    [(partition,)] = acme.run(
        "SELECT 'wicketgate.' || relname FROM wicketgate.attempts a"
        " JOIN pg_class c ON c.oid = a.tableoid"
    )
    assert (partition == "wicketgate.attempts_default") == (month is not None)

    with pytest.raises(RestrictViolation):
        acme.run(change.format(partition))


def test_one_row_for_each_attempt_and_request(open_shop: OpenShop, ledger_url: str) -> None:
    """A request adds up its attempts, and tells how the last one ended."""
    acme = open_shop()
    request = uuid4()
    other = acme.new_price("d-2", "n", "q")
    first = acme.hold(task="t", task_type="sum", request=request)
    acme.settle(first, "0.1", status="failed")
    second = acme.hold(task="t", task_type="sum", request=request, number=2, price=other)

    [waiting] = read(ledger_url, "SELECT * FROM finance.requests")
    assert (waiting["status"], waiting["settled_at"], waiting["attempts"]) == ("open", None, 1)
    acme.settle(second, "0.2")

    [row] = read(ledger_url, "SELECT * FROM finance.requests")
    assert row.pop("settled_at") > row.pop("admitted_at")
    assert row == {
        "request_id": request,
        "tenant": "acme",
        "key_id": acme.key,
        "task": "t",
        "task_type": "sum",
        "model_requested": "m",
        "model_served": "n",
        "region": "eu",
        "attempts": 2,
        "prompt_tokens": 20,
        "cached_tokens": 8,
        "completion_tokens": 10,
        "cost_usd": Decimal("0.3"),
        "status": "ok",
    }
    attempts = read(ledger_url, "SELECT * FROM finance.attempts ORDER BY attempt")
    assert [
        (a["attempt"], a["deployment"], a["provider"], a["status"], a["cost_usd"]) for a in attempts
    ] == [
        (1, "d-1", "p", "failed", Decimal("0.1")),
        (2, "d-2", "q", "ok", Decimal("0.2")),
    ]
    assert attempts[1]["price_revision"] == other
    assert attempts[1]["output_price"] == Decimal("0.00000015")


def test_an_open_attempt_is_there(open_shop: OpenShop, ledger_url: str) -> None:
    """With what is known of it: no tokens, no cost."""
    acme = open_shop()
    acme.hold()

    [row] = read(ledger_url, "SELECT * FROM finance.attempts")

    assert (row["status"], row["tenant"], row["deployment"]) == ("open", "acme", "d-1")
    assert (row["prompt_tokens"], row["cost_usd"], row["settled_at"]) == (None, None, None)
    assert read(ledger_url, "SELECT * FROM finance.requests") == []


def test_days_of_the_tenants_own_zone(open_shop: OpenShop, ledger_url: str) -> None:
    """Each tenant's days are cut at its own midnight; corrections are in them (O-31)."""
    for name, zone in (
        *(("in London", "UTC"), ("in LA", "America/Los_Angeles")),
        ("in Delhi", "Asia/Kolkata"),
    ):
        tenant = open_shop(name, zone)
        for at, usd in ROWS:
            tenant.call(usd, at=at)
    tenant.run(
        "INSERT INTO wicketgate.adjustments (at, tenant_id, amount_usd, reason, actor)"
        f" VALUES ('2026-05-12T20:00Z', '{tenant.tenant}', -0.2, 'refund', 'Ada')"
    )

    rows = read(
        ledger_url,
        "SELECT tenant, day::text, requests, cost_usd FROM finance.spend_daily ORDER BY 1, 2",
    )

    assert [tuple(row.values()) for row in rows] == [
        ("in Delhi", "2026-05-11", 2, Decimal("0.30")),
        ("in Delhi", "2026-05-12", 3, Decimal("1.20")),
        ("in Delhi", "2026-05-13", 0, Decimal("-0.2")),
        ("in LA", "2026-05-10", 1, Decimal("0.10")),
        ("in LA", "2026-05-11", 3, Decimal("0.90")),
        ("in LA", "2026-05-12", 1, Decimal("0.50")),
        ("in London", "2026-05-11", 3, Decimal("0.60")),
        ("in London", "2026-05-12", 2, Decimal("0.90")),
    ]


def test_cost_per_finished_task(open_shop: OpenShop, ledger_url: str) -> None:
    """A finished task costs all its attempts; failed and open tasks stand beside."""
    acme = open_shop()
    acme.settle(acme.hold(task="a", task_type="sum"), "0.1", status="failed")
    for task, usd in (("a", "0.2"), ("b", "0.1"), ("c", "0.7"), ("d", "0.05")):
        acme.call(usd, task=task, task_type="sum")
    acme.run("UPDATE wicketgate.tasks SET state = 'finished' WHERE name IN ('a', 'b')")
    acme.run("UPDATE wicketgate.tasks SET state = 'failed' WHERE name = 'c'")

    assert read(ledger_url, "SELECT * FROM finance.cost_per_finished_task") == [
        {
            "tenant": "acme",
            "task_type": "sum",
            "finished_tasks": 2,
            "finished_cost_usd": Decimal("0.4"),
            "cost_usd_per_finished_task": Decimal("0.2"),
            "failed_tasks": 1,
            "failed_cost_usd": Decimal("0.7"),
            "open_tasks": 1,
            "open_cost_usd": Decimal("0.05"),
        }
    ]


def test_unit_cost(open_shop: OpenShop, ledger_url: str) -> None:
    """$1.00 an hour at 30.3 tokens a second is $9.17 for a million."""
    open_shop().run(
        "INSERT INTO wicketgate.hosting (deployment, usd_per_hour, tokens_per_second)"
        " VALUES ('local', 1.00, 30.3), ('idle', 0.25, NULL)"
    )

    rows = read(
        ledger_url,
        "SELECT deployment, round(usd_per_million_tokens, 2) AS usd FROM finance.unit_cost"
        " ORDER BY deployment DESC",
    )
    assert [(row["deployment"], row["usd"]) for row in rows] == [
        ("local", Decimal("9.17")),
        ("idle", None),
    ]


def test_a_migration_without_the_right_to_make_roles(
    postgres: EmbeddedPostgres, ledger_url: str, fresh_database: str
) -> None:
    """Where the role exists it is granted to all the same."""
    with visitor(postgres, fresh_database) as url:
        name = url.partition("//")[2].partition(":")[0]
        with psycopg.connect(fresh_database, autocommit=True) as conn:
            database = fresh_database.rpartition("/")[2]
            conn.execute(f"GRANT CREATE ON DATABASE {database} TO {name}")
        try:
            migrate.migrate(url, lambda line: None)
            with reader(postgres, fresh_database) as conn:
                assert conn.execute("SELECT count(*) FROM finance.requests").fetchone() == (0,)
        finally:
            with psycopg.connect(url, autocommit=True) as conn:
                conn.execute("DROP OWNED BY CURRENT_USER CASCADE")
            with psycopg.connect(fresh_database, autocommit=True) as conn:
                conn.execute(f"REVOKE ALL ON DATABASE {database} FROM {name}")
