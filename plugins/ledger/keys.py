"""Keys: issue, find, block, unblock, rotate, revoke. Only hashes get here, never a secret."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, func, insert, or_, select, update

from plugins.ledger import audit
from plugins.ledger.tables import keys, tenants
from plugins.ledger.tenants import TenantRow, as_id


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key as it is stored.

    Attributes:
        replaced_by: The key it was rotated to.
    """

    id: UUID
    tenant_id: UUID
    tenant: str
    prefix: str
    alias: str | None
    created_at: datetime
    expires_at: datetime | None
    blocked_at: datetime | None
    revoked_at: datetime | None
    replaced_by: UUID | None

    def state(self, now: datetime) -> str:
        """Return `active`, or the most final reason why it opens nothing."""
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and self.expires_at <= now:
            return "expired"
        return "blocked" if self.blocked_at is not None else "active"


@dataclass(frozen=True, slots=True)
class NewKey:
    """What is stored of a fresh secret.

    Attributes:
        digest: SHA-256 of the secret.

        prefix: Its first characters, for people.

        expires_at: When it stops opening anything; None: never.
    """

    digest: bytes
    prefix: str
    alias: str | None
    expires_at: datetime | None


_successors = keys.alias("successors")
COLUMNS: tuple[ColumnElement[Any], ...] = (
    keys.c.id,
    keys.c.tenant_id,
    tenants.c.name,
    keys.c.prefix,
    keys.c.alias,
    keys.c.created_at,
    keys.c.expires_at,
    keys.c.blocked_at,
    keys.c.revoked_at,
    select(_successors.c.id).where(_successors.c.rotated_from == keys.c.id).scalar_subquery(),
)


def listed(conn: Connection, tenant_id: UUID | None = None) -> list[KeyRow]:
    """Return the keys of one tenant, or of all, in the order they were issued."""
    statement = select(*COLUMNS).join_from(keys, tenants).order_by(keys.c.created_at, keys.c.id)
    if tenant_id is not None:
        statement = statement.where(keys.c.tenant_id == tenant_id)
    return [KeyRow(*row) for row in conn.execute(statement)]


def named(conn: Connection, name: str, tenant_id: UUID | None = None) -> list[KeyRow]:
    """Return the keys of that id, or else display prefix, or else alias.

    Several keys may share a prefix or an alias.
    """
    statement = (
        select(*COLUMNS)
        .join_from(keys, tenants)
        .where(or_(keys.c.id == as_id(name), keys.c.prefix == name, keys.c.alias == name))
        .order_by(keys.c.created_at, keys.c.id)
    )
    if tenant_id is not None:
        statement = statement.where(keys.c.tenant_id == tenant_id)
    found = [KeyRow(*row) for row in conn.execute(statement)]
    by_id = [key for key in found if key.id == as_id(name)]
    # An alias never stands in for what another key is called by itself.
    return by_id or [key for key in found if key.prefix == name] or found


def issue(conn: Connection, tenant: TenantRow, new: NewKey, *, actor: str) -> KeyRow:
    key = _insert(conn, tenant.id, new, rotated_from=None)
    audit.record(
        conn,
        actor,
        "key issue",
        {**subject(key), "alias": key.alias, "expires_at": _iso(key.expires_at)},
    )
    return key


def rotate(
    conn: Connection, old: KeyRow, new: NewKey, old_expires_at: datetime, *, actor: str
) -> KeyRow:
    """Issue *new* in place of *old*, which works on until *old_expires_at*."""
    key = _insert(conn, old.tenant_id, new, rotated_from=old.id)
    conn.execute(update(keys).where(keys.c.id == old.id).values(expires_at=old_expires_at))
    audit.record(
        conn,
        actor,
        "key rotate",
        {
            **subject(key),
            "expires_at": _iso(key.expires_at),
            "old_key_id": str(old.id),
            "old_prefix": old.prefix,
            "old_expires_at": _iso(old_expires_at),
        },
    )
    return key


def grace_end(old: KeyRow, wanted: datetime) -> datetime:
    """Return when a rotated key stops: as *wanted*, but never later than it would have."""
    return wanted if old.expires_at is None else min(wanted, old.expires_at)


def block(conn: Connection, key: KeyRow, *, actor: str) -> KeyRow:
    return _stamp(conn, key, "key block", actor, blocked_at=func.now())


def unblock(conn: Connection, key: KeyRow, *, actor: str) -> KeyRow:
    return _stamp(conn, key, "key unblock", actor, blocked_at=None)


def revoke(conn: Connection, key: KeyRow, *, actor: str) -> KeyRow:
    """Close *key* for good."""
    return _stamp(conn, key, "key revoke", actor, revoked_at=func.now())


def _insert(conn: Connection, tenant_id: UUID, new: NewKey, *, rotated_from: UUID | None) -> KeyRow:
    key_id = conn.execute(
        insert(keys)
        .values(
            tenant_id=tenant_id,
            digest=new.digest,
            prefix=new.prefix,
            alias=new.alias,
            expires_at=new.expires_at,
            rotated_from=rotated_from,
        )
        .returning(keys.c.id)
    ).scalar_one()
    return _get(conn, key_id)


def _stamp(conn: Connection, key: KeyRow, action: str, actor: str, **values: object) -> KeyRow:
    conn.execute(update(keys).where(keys.c.id == key.id).values(**values))
    audit.record(conn, actor, action, subject(key))
    return _get(conn, key.id)


def _get(conn: Connection, key_id: UUID) -> KeyRow:
    row = conn.execute(select(*COLUMNS).join_from(keys, tenants).where(keys.c.id == key_id)).one()
    return KeyRow(*row)


def subject(key: KeyRow) -> dict[str, str]:
    """Return how the audit log names *key*."""
    return {"key_id": str(key.id), "prefix": key.prefix, "tenant": key.tenant}


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()
