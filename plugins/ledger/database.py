"""Reaching the ledger's database, and saying that it cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg.errors import (
    InsufficientPrivilege,
    InvalidSchemaName,
    LockNotAvailable,
    ReadOnlySqlTransaction,
    UndefinedTable,
)
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, make_url
from sqlalchemy.exc import (
    ArgumentError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
)

#: How long a server may be silent, unless the URL says otherwise: seconds to connect to each
#: host, seconds of idleness before it is asked whether it is still there, and milliseconds
#: until unanswered data ends the connection.
WAITS = {"connect_timeout": "5", "keepalives_idle": "2", "tcp_user_timeout": "3000"}
DRIVER = "postgresql+psycopg"
#: Of LEDGER_URL; a test holds `config.flags.LEDGER_SCHEMES` to them.
SCHEMES = frozenset({"postgresql", "postgres"})


class LedgerUnavailable(Exception):
    """The ledger database cannot be reached.

    The text is fixed and may be shown to anyone. The cause, whose text names hosts and users,
    hangs on `__cause__` only: log the cause's type, not its words.
    """

    def __init__(self) -> None:
        super().__init__("The ledger database is not available.")


class LedgerNotMigratedError(Exception):
    """The database answers, but has no Wicketgate tables."""

    def __init__(self) -> None:
        super().__init__("The ledger database has no Wicketgate tables yet.")


class LedgerRefusedError(Exception):
    """The database answers, and does not let our role do what it must; nothing was changed."""

    def __init__(self) -> None:
        super().__init__(
            "The ledger's role may not do this: grant it CREATE on the database,"
            " or migrate as its owner."
        )


class LedgerBusyError(Exception):
    """A change waited in vain for another one to end; nothing was changed."""

    def __init__(self) -> None:
        super().__init__("Another change to the ledger is under way and does not end.")


class LedgerURLError(ValueError):
    """LEDGER_URL cannot be read; the text never repeats it, because it holds a password."""

    def __init__(self) -> None:
        super().__init__(
            "LEDGER_URL: expected postgresql://user:password@host:port/database"
            " (percent-encode special characters in the password)"
        )


def sqlalchemy_url(ledger_url: str) -> URL:
    """Return the `postgresql://` URL of the settings with our driver in it.

    Its `str` and `repr` mask the password.
    """
    try:
        url = make_url(ledger_url)
    except (ArgumentError, ValueError):
        # Not chained: the parser's own words repeat parts of the URL.
        raise LedgerURLError from None
    if url.drivername not in SCHEMES or "\x00" in ledger_url:
        raise LedgerURLError
    return url.set(drivername=DRIVER)


def connect_engine(ledger_url: str) -> Engine:
    """Return an engine without a pool: a connection lives as long as someone holds it."""
    url = sqlalchemy_url(ledger_url)
    url = url.update_query_dict({n: v for n, v in WAITS.items() if n not in url.query})
    return create_engine(url, poolclass=NullPool, hide_parameters=True)


@contextmanager
def ledger_errors() -> Iterator[None]:
    """Turn the driver's errors into the few that callers tell apart.

    An unknown error (a broken constraint, a wrong statement) passes through: it is a fault of
    ours. A full disk counts as unavailable, and so does a refused password.
    """
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        if isinstance(error.orig, LockNotAvailable):
            raise LedgerBusyError from error
        raise LedgerUnavailable from error
    except (ProgrammingError, InternalError) as error:
        if isinstance(error.orig, UndefinedTable | InvalidSchemaName):
            raise LedgerNotMigratedError from error
        if isinstance(error.orig, InsufficientPrivilege | ReadOnlySqlTransaction):
            raise LedgerRefusedError from error
        if error.statement is None and getattr(error.orig, "sqlstate", None) is None:
            # Before any server was asked: the driver does not know an option of the address.
            raise LedgerURLError from None
        raise


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """Open a connection and a transaction on it: committed at the end, rolled back on errors."""
    with ledger_errors(), engine.begin() as conn:
        yield conn
