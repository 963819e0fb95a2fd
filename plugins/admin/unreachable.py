"""Why the ledger is not available, for the operator's own terminal: names hosts and users.

The driver has no error code for a connection that was refused, so its words decide, and the
address says the rest. A server that speaks another language is quoted.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Self

import psycopg
from psycopg.errors import ConnectionTimeout
from sqlalchemy import URL

from plugins.ledger.database import LedgerUnavailable, sqlalchemy_url

QUOTED_LENGTH = 200

#: sqlstate, words of libpq or psycopg, and what they mean; the first that fits counts.
MEANINGS = (
    ("28P01", "password authentication failed", "the password for user {user!r} is not accepted"),
    (None, "no password supplied", "user {user!r} needs a password"),
    ("3D000", r'FATAL: +database ".*" does not exist', "there is no database {database!r} at {at}"),
    (None, "failed to resolve host|could not translate host name", "unknown host {host!r}"),
    (None, "Connection refused|No such file or directory", "nothing listens at {at}"),
    (None, "timeout expired|timed out|No route to host|is unreachable", "{host} does not answer"),
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a connection was tried, without the password."""

    host: str
    at: str
    user: str
    database: str

    @classmethod
    def of(cls, url: URL) -> Self:
        user = url.username or _given(url, "user")
        host = url.host or _given(url, "host") or "localhost"
        port = url.port or _given(url, "port") or "5432"
        if host.startswith("/"):
            at = f"the socket in {host}"
        elif url.host is None and ":" in host:  # SQLAlchemy's list of several
            at = host
        else:
            at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return cls(host, at, user, url.database or _given(url, "dbname", "PGDATABASE") or user)


def told(error: LedgerUnavailable, ledger_url: str) -> str:
    """Return one line: that the ledger is not available, and why if that is known."""
    url = sqlalchemy_url(ledger_url)
    why = _reason(getattr(error.__cause__, "orig", None), Address.of(url), str(url.password or ""))
    return str(error) if why is None else f"{str(error).rstrip('.')}: {why}."


def _reason(error: object, address: Address, password: str) -> str | None:
    if not isinstance(error, psycopg.Error):
        return None
    parts = {name: getattr(address, name) for name in Address.__slots__}
    if isinstance(error, ConnectionTimeout):
        return "{host} does not answer".format(**parts)
    for sqlstate, words, meaning in MEANINGS:
        if (sqlstate and error.sqlstate == sqlstate) or re.search(words, str(error)):
            return meaning.format(**parts)
    said = error.diag.message_primary or str(error).partition("FATAL:")[2].partition("\n")[0]
    said = said.strip()[:QUOTED_LENGTH].rstrip(".")
    if not said or (password and password in said):
        return None
    return f"{address.at} says: {said}"


def _given(url: URL, name: str, variable: str = "") -> str:
    """Return a setting as libpq finds it: in the URL's query, or else in the environment."""
    value = url.query.get(name) or os.environ.get(variable or f"PG{name.upper()}", "")
    return value if isinstance(value, str) else ",".join(value)
