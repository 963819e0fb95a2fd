"""Bringing the database to the code's schema, and saying where it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from plugins.ledger.database import (
    LedgerBusyError,
    connect_engine,
    ledger_errors,
    transaction,
)
from plugins.ledger.tables import SCHEMA

INI = Path(__file__).parents[2] / "migrations" / "alembic.ini"

Progress = Callable[[str], None]


class MigrationError(Exception):
    """The database was left as it was; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Status:
    """Where a database stands against this code.

    Attributes:
        current: The newest revision applied; None for a database without our schema.

        head: The newest revision this code knows.

        pending: Revisions still to apply, oldest first.
    """

    current: str | None
    head: str
    pending: tuple[str, ...]

    @property
    def ahead(self) -> bool:
        """True if a newer version of the code has migrated the database."""
        return self.current != self.head and not self.pending

    @property
    def state(self) -> str:
        if self.ahead:
            return "ahead"
        return "behind" if self.pending else "current"


def status(url: str) -> Status:
    engine = connect_engine(url)
    with transaction(engine) as conn:
        context = MigrationContext.configure(conn, opts={"version_table_schema": SCHEMA})
        current = context.get_current_revision()
    revisions = _known_revisions(alembic_config(url))
    return Status(current, revisions[-1], _after(current, revisions))


def refuse_ahead(found: Status) -> None:
    """Raise `MigrationError` if the database belongs to a newer version of the code."""
    if found.ahead:
        raise MigrationError(
            f"the database is at revision {found.current}, this code knows only up to"
            f" {found.head}: run the newer version of Wicketgate that migrated it"
        )


def migrate(url: str, progress: Progress) -> list[str]:
    """Apply what is pending and return it, oldest first.

    One runner at a time: a second one waits for the first and then finds nothing to do.

    Args:
        url: The database, as in LEDGER_URL.

        progress: Called with one line of text at each step.
    """
    before = status(url)
    refuse_ahead(before)
    if not before.pending:
        return []
    applied: list[str] = []

    def on_version_apply(*, step: Any, **_: Any) -> None:
        applied.append(step.up_revision_id)
        progress(f"migrated the database to {step.up_revision_id}: {step.up_revision.doc}")

    alembic = alembic_config(url)
    alembic.attributes["progress"] = progress
    alembic.attributes["on_version_apply"] = on_version_apply
    try:
        with ledger_errors():
            command.upgrade(alembic, "head")
    except LedgerBusyError as error:
        raise MigrationError(
            "a lock was not free in time: another migration or a long transaction holds it;"
            " nothing was changed, run it again"
        ) from error
    except CommandError:
        # Someone else's newer code may have migrated while this one waited.
        refuse_ahead(status(url))
        raise
    return applied


def alembic_config(url: str) -> Config:
    """Return what Alembic's own commands need to work on the database at *url*."""
    config = Config(INI)
    config.attributes["ledger_url"] = url
    return config


def _known_revisions(config: Config) -> list[str]:
    """Return every revision of the code, oldest first."""
    return [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()][
        ::-1
    ]


def _after(current: str | None, revisions: list[str]) -> tuple[str, ...]:
    if current is None:
        return tuple(revisions)
    if current not in revisions:
        return ()
    return tuple(revisions[revisions.index(current) + 1 :])
