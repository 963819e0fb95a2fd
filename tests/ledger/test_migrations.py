"""Migrations: they agree with the tables, can be undone, and run one at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from alembic import command
from sqlalchemy import CheckConstraint

from plugins.ledger import migrate
from plugins.ledger.database import LedgerUnavailable
from plugins.ledger.tables import metadata

ROOT = Path(__file__).parents[2]
REVISIONS = ["0001", "0002", "0003"]
RUNNER_LOCK = "hashtext('wicketgate.migrations')"


def quiet(_line: str) -> None:
    pass


def names(url: str, statement: str) -> set[str]:
    with psycopg.connect(url) as conn:
        return {row[0] for row in conn.execute(statement)}


def tables(url: str) -> set[str]:
    return names(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'wicketgate'")


def set_revision(url: str, revision: str) -> None:
    with psycopg.connect(url) as conn:
        conn.execute("CREATE SCHEMA IF NOT EXISTS wicketgate")
        conn.execute(
            "CREATE TABLE IF NOT EXISTS wicketgate.alembic_version (version_num text PRIMARY KEY)"
        )
        conn.execute("DELETE FROM wicketgate.alembic_version")
        conn.execute("INSERT INTO wicketgate.alembic_version VALUES (%s)", [revision])


def test_tables_and_migrations_agree(ledger_url: str) -> None:
    """`alembic check` finds nothing that a new migration would have to add."""
    result = subprocess.run(
        [sys.executable, "-m", "alembic", "-c", "migrations/alembic.ini", "check"],
        cwd=ROOT,
        env={**os.environ, "LEDGER_URL": ledger_url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert result.stdout == "No new upgrade operations detected.\n", result.stderr


def test_check_constraints_agree(ledger_url: str) -> None:
    """`alembic check` does not look at CHECKs, so their names are compared here."""
    declared = {
        f"{table.name}.ck_{table.name}_{constraint.name}"
        if not str(constraint.name).startswith("ck_")
        else f"{table.name}.{constraint.name}"
        for table in metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint)
    }

    assert declared == names(
        ledger_url,
        "SELECT relname || '.' || conname FROM pg_constraint JOIN pg_class"
        " ON pg_class.oid = conrelid WHERE contype = 'c'"
        " AND connamespace = 'wicketgate'::regnamespace AND NOT relispartition",
    )


def test_up_down_up(fresh_database: str) -> None:
    """Undoing leaves Alembic's own table only, and everything can be made again."""
    url = fresh_database
    assert migrate.migrate(url, quiet) == REVISIONS
    assert tables(url) > {"tenants", "keys", "grants", "audit_log", "snapshot_revision"}

    command.downgrade(migrate.alembic_config(url), "base")
    assert tables(url) == {"alembic_version"}
    assert not names(url, "SELECT nspname FROM pg_namespace WHERE nspname = 'finance'")
    assert not names(
        url, "SELECT proname FROM pg_proc WHERE pronamespace = 'wicketgate'::regnamespace"
    )

    assert migrate.migrate(url, quiet) == REVISIONS


def test_nothing_outside_the_schema(ledger_url: str) -> None:
    """The database may be shared: `public` stays as it was."""
    assert not names(ledger_url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")


def test_status_before_and_after(fresh_database: str) -> None:
    """Status says what is pending, and migrating twice applies it once."""
    lines: list[str] = []

    assert migrate.status(fresh_database) == migrate.Status(None, "0003", tuple(REVISIONS))
    assert migrate.migrate(fresh_database, lines.append) == REVISIONS
    assert migrate.status(fresh_database) == migrate.Status("0003", "0003", ())
    assert migrate.migrate(fresh_database, lines.append) == []
    assert lines == [
        "migrated the database to 0001: Create tenants, keys, grants, the audit log and the"
        " snapshot revision.",
        "migrated the database to 0002: Create budgets, tasks, prices, attempts and the functions"
        " that hold and settle.",
        "migrated the database to 0003: Create what finance reads: the views of schema finance,"
        " for role finance_reader.",
    ]


def test_a_database_ahead_of_the_code_is_refused(ledger_url: str) -> None:
    """Old code leaves a newer database alone and says which code to run."""
    set_revision(ledger_url, "9999")

    assert migrate.status(ledger_url).state == "ahead"
    with pytest.raises(migrate.MigrationError) as refused:
        migrate.migrate(ledger_url, quiet)
    assert str(refused.value) == (
        "the database is at revision 9999, this code knows only up to 0003:"
        " run the newer version of Wicketgate that migrated it"
    )


def test_an_unreachable_database(fresh_database: str) -> None:
    """The error says so in a fixed text, without the address."""
    with pytest.raises(LedgerUnavailable) as refused:
        migrate.migrate("postgresql://someone:hunter2@127.0.0.1:1/ledger", quiet)
    assert str(refused.value) == "The ledger database is not available."


def while_another_migrates(
    url: str, meanwhile: Callable[[], None]
) -> tuple[list[str], list[str], list[Exception]]:
    """Run `migrate` while the runners' lock is held; *meanwhile* runs before it is freed.

    Returns what was applied, the lines of progress, and what was raised.
    """
    applied: list[str] = []
    lines: list[str] = []
    errors: list[Exception] = []
    waiting = threading.Event()

    def progress(line: str) -> None:
        lines.append(line)
        waiting.set()

    def run() -> None:
        try:
            applied.extend(migrate.migrate(url, progress))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(f"SELECT pg_advisory_lock({RUNNER_LOCK})")
        thread.start()
        assert waiting.wait(30)
        thread.join(0.5)
        assert thread.is_alive()
        assert "tenants" not in tables(url)
        meanwhile()
    thread.join(30)
    assert not thread.is_alive()
    return applied, lines, errors


def test_a_second_runner_waits(fresh_database: str) -> None:
    """It touches nothing while the first one is at work, then goes on."""
    applied, lines, errors = while_another_migrates(fresh_database, lambda: None)

    assert (applied, errors) == (REVISIONS, [])
    assert lines[0] == "waiting for another migration to end"


def test_a_newer_runner_came_first(fresh_database: str) -> None:
    """A runner that waited looks again: the database may be ahead by now."""
    applied, _, errors = while_another_migrates(
        fresh_database, lambda: set_revision(fresh_database, "9999")
    )

    assert applied == []
    assert [type(error) for error in errors] == [migrate.MigrationError]


def test_two_runners_at_once(fresh_database: str) -> None:
    """Of two processes that start together, one applies and both succeed."""
    runners = [
        subprocess.Popen(
            [sys.executable, "-m", "plugins.admin", "db", "migrate", "--json"],
            cwd=ROOT,
            env={**os.environ, "LEDGER_URL": fresh_database},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [runner.communicate(timeout=90) for runner in runners]

    assert [runner.returncode for runner in runners] == [0, 0], outputs
    assert sum('"applied": []' in out for out, _ in outputs) == 1
