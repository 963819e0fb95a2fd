"""Grants: what a tenant may use, one row for each pattern."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, delete, select, tuple_
from sqlalchemy.dialects.postgresql import insert

from plugins.ledger import audit
from plugins.ledger.tables import grants, tenants
from plugins.ledger.tenants import TenantRow, subject
from plugins.policy.grants import Dimension

Pattern = tuple[Dimension, str]


@dataclass(frozen=True, slots=True)
class GrantRow:
    tenant: str
    dimension: Dimension
    pattern: str
    created_at: datetime


def listed(conn: Connection, tenant_id: UUID | None = None) -> list[GrantRow]:
    """Return the grants of one tenant, or of all; sorted by tenant, dimension, pattern."""
    statement = (
        select(tenants.c.name, grants.c.dimension, grants.c.pattern, grants.c.created_at)
        .join_from(grants, tenants)
        .order_by(tenants.c.name, grants.c.dimension, grants.c.pattern)
    )
    if tenant_id is not None:
        statement = statement.where(grants.c.tenant_id == tenant_id)
    return [
        GrantRow(name, Dimension(dimension), pattern, created_at)
        for name, dimension, pattern, created_at in conn.execute(statement)
    ]


def add(
    conn: Connection, tenant: TenantRow, patterns: Iterable[Pattern], *, actor: str
) -> set[Pattern]:
    """Grant *patterns* to *tenant* and return those it did not have yet."""
    rows = conn.execute(
        insert(grants)
        .values([_values(tenant, pattern) for pattern in patterns])
        .on_conflict_do_nothing()
        .returning(grants.c.dimension, grants.c.pattern)
    )
    added = {(Dimension(dimension), pattern) for dimension, pattern in rows}
    if added:
        _record(conn, tenant, "grant add", added, actor)
    return added


def remove(
    conn: Connection, tenant: TenantRow, patterns: Iterable[Pattern], *, actor: str
) -> set[Pattern]:
    """Take *patterns* from *tenant* and return those it had."""
    wanted = [(dimension.value, pattern) for dimension, pattern in patterns]
    rows = conn.execute(
        delete(grants)
        .where(
            grants.c.tenant_id == tenant.id,
            tuple_(grants.c.dimension, grants.c.pattern).in_(wanted),
        )
        .returning(grants.c.dimension, grants.c.pattern)
    )
    removed = {(Dimension(dimension), pattern) for dimension, pattern in rows}
    if removed:
        _record(conn, tenant, "grant remove", removed, actor)
    return removed


def _values(tenant: TenantRow, pattern: Pattern) -> dict[str, object]:
    return {"tenant_id": tenant.id, "dimension": pattern[0].value, "pattern": pattern[1]}


def _record(
    conn: Connection, tenant: TenantRow, action: str, patterns: set[Pattern], actor: str
) -> None:
    named = [{"dimension": d.value, "pattern": p} for d, p in sorted(patterns)]
    audit.record(conn, actor, action, {**subject(tenant), "grants": named})
