"""Tenants: add, find, set the zone, disable, enable."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, func, insert, or_, select, update

from plugins.ledger import audit
from plugins.ledger.tables import tenants


@dataclass(frozen=True, slots=True)
class TenantRow:
    id: UUID
    name: str
    zone: str
    disabled_at: datetime | None
    created_at: datetime

    @property
    def disabled(self) -> bool:
        return self.disabled_at is not None


COLUMNS = (
    tenants.c.id,
    tenants.c.name,
    tenants.c.zone,
    tenants.c.disabled_at,
    tenants.c.created_at,
)


def as_id(text: str) -> UUID | None:
    """Return *text* as an id if it is written as one, hyphens and all."""
    try:
        value = UUID(text)
    except ValueError:
        return None
    return value if str(value) == text.lower() else None


def find(conn: Connection, name_or_id: str) -> TenantRow | None:
    """Return the tenant of that exact name or id; no name looks like an id."""
    wanted = as_id(name_or_id)
    row = conn.execute(
        select(*COLUMNS).where(or_(tenants.c.name == name_or_id, tenants.c.id == wanted))
    ).one_or_none()
    return None if row is None else TenantRow(*row)


def every(conn: Connection) -> list[TenantRow]:
    """Return all tenants in the order they came."""
    rows = conn.execute(select(*COLUMNS).order_by(tenants.c.created_at, tenants.c.id))
    return [TenantRow(*row) for row in rows]


def add(conn: Connection, name: str, zone: str, *, actor: str) -> TenantRow:
    """Add a tenant.

    Raises:
        ValueError: If the name is written as an id, which would make `find` ambiguous.
    """
    if as_id(name) is not None:
        raise ValueError("a tenant's name must not be written as an id")
    row = conn.execute(insert(tenants).values(name=name, zone=zone).returning(*COLUMNS)).one()
    tenant = TenantRow(*row)
    audit.record(conn, actor, "tenant add", {**subject(tenant), "zone": zone})
    return tenant


def set_zone(conn: Connection, tenant: TenantRow, zone: str, *, actor: str) -> TenantRow:
    row = conn.execute(
        update(tenants).where(tenants.c.id == tenant.id).values(zone=zone).returning(*COLUMNS)
    ).one()
    named = {**subject(tenant), "zone": zone, "old_zone": tenant.zone}
    audit.record(conn, actor, "tenant set-zone", named)
    return TenantRow(*row)


def disable(conn: Connection, tenant: TenantRow, *, actor: str) -> TenantRow:
    """Freeze *tenant*: from now on none of its keys opens anything."""
    return _set_disabled(conn, tenant, True, "tenant disable", actor)


def enable(conn: Connection, tenant: TenantRow, *, actor: str) -> TenantRow:
    return _set_disabled(conn, tenant, False, "tenant enable", actor)


def _set_disabled(
    conn: Connection, tenant: TenantRow, disabled: bool, action: str, actor: str
) -> TenantRow:
    row = conn.execute(
        update(tenants)
        .where(tenants.c.id == tenant.id)
        .values(disabled_at=func.now() if disabled else None)
        .returning(*COLUMNS)
    ).one()
    audit.record(conn, actor, action, subject(tenant))
    return TenantRow(*row)


def subject(tenant: TenantRow) -> dict[str, str]:
    """Return how the audit log names *tenant*."""
    return {"tenant_id": str(tenant.id), "tenant": tenant.name}
