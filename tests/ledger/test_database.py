"""The address of the ledger: read once, shown never."""

from __future__ import annotations

import socket
import time
import traceback

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from plugins.config.check import check_launch
from plugins.config.flags import LEDGER_SCHEMES
from plugins.ledger.database import (
    SCHEMES,
    LedgerNotMigratedError,
    LedgerRefusedError,
    LedgerUnavailable,
    LedgerURLError,
    connect_engine,
    sqlalchemy_url,
    transaction,
)

SECRET = "hunter2"
REFUSED = (
    "The ledger's role may not do this: grant it CREATE on the database, or migrate as its owner."
)


@pytest.mark.parametrize(
    ("ledger_url", "shown"),
    [
        (f"postgresql://u:{SECRET}@db:5432/l", "postgresql+psycopg://u:***@db:5432/l"),
        (f"postgres://u:{SECRET}@db/l", "postgresql+psycopg://u:***@db/l"),
        (
            "postgresql:///l?host=/run/postgresql",
            "postgresql+psycopg:///l?host=%2Frun%2Fpostgresql",
        ),
        (
            f"postgresql://u:{SECRET}@db/l?sslmode=require",
            "postgresql+psycopg://u:***@db/l?sslmode=require",
        ),
    ],
)
def test_sqlalchemy_url(ledger_url: str, shown: str) -> None:
    """The libpq form becomes SQLAlchemy's, with the password masked when printed."""
    url = sqlalchemy_url(ledger_url)

    assert str(url) == repr(url) == shown
    assert SECRET not in repr(connect_engine(ledger_url))


@pytest.mark.parametrize(
    "ledger_url",
    [
        "",
        SECRET,
        f"mysql://u:{SECRET}@db/l",
        f"postgresql+psycopg://u:{SECRET}@db/l",
        f"postgresql+asyncpg://u:{SECRET}@db/l",
        f"POSTGRESQL://u:{SECRET}@db/l",
        f"postgresql://u:{SECRET}@db:port/l",
        f"host=db password={SECRET}",
        f"postgresql://u:{SECRET}\x00@db/l",
    ],
)
def test_an_address_that_cannot_be_read(ledger_url: str) -> None:
    """The error says what was expected and repeats nothing."""
    with pytest.raises(LedgerURLError) as refused:
        connect_engine(ledger_url)

    assert str(refused.value) == (
        "LEDGER_URL: expected postgresql://user:password@host:port/database"
        " (percent-encode special characters in the password)"
    )
    assert SECRET not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    "start", ["postgresql://", "postgres://", "postgresql+psycopg://", "POSTGRES://", "mysql://"]
)
def test_the_boot_check_accepts_what_the_ledger_accepts(start: str) -> None:
    """An address that passes the check and fails at the first use would be found out too late."""
    ledger_url = f"{start}u@db/l"
    refused = "LEDGER_URL" in [p.path for p in check_launch({"LEDGER_URL": ledger_url})]
    try:
        sqlalchemy_url(ledger_url)
        readable = True
    except LedgerURLError:
        readable = False

    assert set(LEDGER_SCHEMES) == SCHEMES
    assert readable is not refused


@pytest.mark.parametrize("option", ["hello=1", "connect_timeout=abc"])
def test_an_option_that_the_driver_does_not_know(option: str) -> None:
    """It is found out at the first connection, and said the same way."""
    with pytest.raises(LedgerURLError) as refused:
        run(f"postgresql://u:{SECRET}@127.0.0.1:1/l?{option}", "SELECT 1")

    assert SECRET not in "".join(traceback.format_exception(refused.value))


def run(ledger_url: str, statement: str) -> None:
    with transaction(connect_engine(ledger_url)) as conn:
        conn.execute(text(statement))


def test_a_database_that_is_not_there() -> None:
    """The text is fixed; what the driver said hangs on the cause."""
    with pytest.raises(LedgerUnavailable) as refused:
        run(f"postgresql://u:{SECRET}@127.0.0.1:1/l", "SELECT 1")

    assert str(refused.value) == "The ledger database is not available."
    assert refused.value.args == (str(refused.value),)
    assert isinstance(getattr(refused.value.__cause__, "orig", None), psycopg.OperationalError)


def test_a_database_that_does_not_answer() -> None:
    """A host that takes the connection and says nothing is given up after five seconds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        with pytest.raises(LedgerUnavailable):
            run(f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/l", "SELECT 1")

    assert 4 < time.monotonic() - started < 9


def test_a_connection_that_breaks(fresh_database: str) -> None:
    """A server that goes away in the middle is unavailable, too."""
    with pytest.raises(LedgerUnavailable):
        run(fresh_database, "SELECT pg_terminate_backend(pg_backend_pid())")


def test_a_database_without_our_tables(fresh_database: str) -> None:
    """It is told apart from one that does not answer."""
    with pytest.raises(LedgerNotMigratedError) as refused:
        run(fresh_database, "SELECT value FROM wicketgate.snapshot_revision")

    assert str(refused.value) == "The ledger database has no Wicketgate tables yet."


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(
            ["CREATE ROLE visitor", "SET ROLE visitor", "SELECT 1 FROM wicketgate.tenants"],
            id="no-right",
        ),
        pytest.param(
            ["SET TRANSACTION READ ONLY", "UPDATE wicketgate.snapshot_revision SET value = 7"],
            id="read-only",
        ),
    ],
)
def test_a_role_that_may_not(ledger_url: str, statements: list[str]) -> None:
    """The one line says what to grant; whom and what the driver names stays on the cause."""
    with pytest.raises(LedgerRefusedError) as refused:
        run(ledger_url, "; ".join(statements))

    assert str(refused.value) == REFUSED


def test_a_fault_of_ours_passes_through(ledger_url: str) -> None:
    """A broken constraint is not dressed up as a missing database."""
    with pytest.raises(IntegrityError):
        run(ledger_url, "INSERT INTO wicketgate.snapshot_revision VALUES (false, 1)")
