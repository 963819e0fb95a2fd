"""Empty databases for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import psycopg

from plugins.setup.postgres import EmbeddedPostgres

_numbers = count(1)


@contextmanager
def fresh_database(postgres: EmbeddedPostgres) -> Iterator[str]:
    """Give the `postgresql://` address of an empty database, dropped at the end."""
    name = f"fresh_{next(_numbers)}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield postgres.url.rpartition("/")[0] + f"/{name}"
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def visitor(postgres: EmbeddedPostgres, ledger_url: str) -> Iterator[str]:
    """Give the address of *ledger_url* for a role that may log in there, and nothing else."""
    name = f"visitor_{next(_numbers)}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'")
        try:
            yield f"postgresql://{name}:x@{ledger_url.rpartition('@')[2]}"
        finally:
            connection.execute(f"DROP ROLE {name}")
