"""Who changed what: one row for each change, never altered afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select

from plugins.ledger.tables import audit_log


@dataclass(frozen=True, slots=True)
class Entry:
    """One change.

    Attributes:
        actor: Name of the person, as the operating system or `--actor` gave it.

        action: What was done, as the command is called: `key block`.

        subject: What it was done to; ids, names and prefixes, never a secret.
    """

    id: int
    at: datetime
    actor: str
    action: str
    subject: Mapping[str, Any]


def record(conn: Connection, actor: str, action: str, subject: Mapping[str, Any]) -> None:
    conn.execute(insert(audit_log).values(actor=actor, action=action, subject=subject))


def entries(conn: Connection, limit: int, tenant: str | None = None) -> list[Entry]:
    """Return the newest *limit* entries, of all or of the tenant of that name, newest first."""
    statement = (
        select(
            audit_log.c.id,
            audit_log.c.at,
            audit_log.c.actor,
            audit_log.c.action,
            audit_log.c.subject,
        )
        .order_by(audit_log.c.id.desc())
        .limit(limit)
    )
    if tenant is not None:
        # By name: each subject has one, and it never changes.
        statement = statement.where(audit_log.c.subject["tenant"].astext == tenant)
    return [Entry(*row) for row in conn.execute(statement)]
