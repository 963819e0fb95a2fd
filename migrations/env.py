"""Alembic's entry point: one runner at a time, and never a long lock.

The database is the one in the configuration's attribute `ledger_url`, else LEDGER_URL.
"""

from __future__ import annotations

import os

import sqlalchemy as sa
from alembic import context
from alembic.util import CommandError

from plugins.ledger.database import connect_engine
from plugins.ledger.tables import SCHEMA, metadata

RUNNER_TIMEOUT = "300s"  # how long a second runner waits for the first
LOCK_TIMEOUT = "4s"  # how long a migration may make live traffic wait behind it
STATEMENT_TIMEOUT = "30s"

RUNNER_LOCK = "hashtext('wicketgate.migrations')"


def ledger_url() -> str:
    url = context.config.attributes.get("ledger_url") or os.environ.get("LEDGER_URL")
    if not url:
        raise CommandError("LEDGER_URL is not set: use 'deploy/admin db migrate', or set it")
    return url


def become_the_runner(conn: sa.Connection) -> None:
    """Take the runners' lock, which ends with the session, however that ends."""
    if not conn.scalar(sa.text(f"SELECT pg_try_advisory_lock({RUNNER_LOCK})")):
        context.config.attributes.get("progress", print)("waiting for another migration to end")
        conn.execute(sa.text(f"SET lock_timeout = '{RUNNER_TIMEOUT}'"))
        conn.execute(sa.text(f"SELECT pg_advisory_lock({RUNNER_LOCK})"))
    # Only now: this lock_timeout would have cut the wait above short as well.
    conn.execute(sa.text(f"SET lock_timeout = '{LOCK_TIMEOUT}'"))
    conn.execute(sa.text(f"SET statement_timeout = '{STATEMENT_TIMEOUT}'"))
    conn.commit()


def look_nowhere_by_default(conn: sa.Connection) -> None:
    """Make every table be seen with its schema.

    A role called like our schema has it on its search path, and Alembic would then take our
    tables for those of a schema without a name.
    """
    conn.execute(sa.text("SET search_path = pg_catalog"))
    conn.dialect.default_schema_name = "public"
    conn.commit()


def make_schema(conn: sa.Connection) -> None:
    """Make the schema, home of the version table too, unless an administrator has done so.

    `IF NOT EXISTS` alone asks for the right to create schemas even where nothing is to be made.
    """
    if conn.scalar(sa.text(f"SELECT to_regnamespace('{SCHEMA}') IS NULL")):
        conn.execute(sa.text(f"CREATE SCHEMA {SCHEMA}"))
    conn.commit()


def include_name(name: str | None, kind: str, _parents: object) -> bool:
    if kind == "table" and name is not None and name.startswith("attempts_"):
        return False  # a partition: its parent stands for it
    return kind != "schema" or name == SCHEMA


def run() -> None:
    if context.is_offline_mode():
        raise CommandError("these migrations need a database: run them without --sql")
    with connect_engine(ledger_url()).connect() as conn:
        become_the_runner(conn)
        look_nowhere_by_default(conn)
        make_schema(conn)
        context.configure(
            connection=conn,
            target_metadata=metadata,
            transaction_per_migration=True,
            version_table_schema=SCHEMA,
            include_schemas=True,
            include_name=include_name,
            compare_server_default=True,
            on_version_apply=context.config.attributes.get("on_version_apply", ()),
        )
        with context.begin_transaction():
            context.run_migrations()


run()
