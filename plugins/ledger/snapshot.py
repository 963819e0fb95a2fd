"""The snapshot of all keys and grants that every call is decided on."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    Connection,
    ScalarSelect,
    Select,
    and_,
    func,
    literal,
    or_,
    select,
    text,
    true,
)

from plugins.ledger.tables import grants, keys, snapshot_revision, tenants
from plugins.policy.grants import Dimension, Grants
from plugins.policy.identity import Key, Snapshot, Tenant

#: A key stays in the snapshot this long after it expired, so that a process whose clock runs
#: behind the database's still finds it; the expiry itself is judged at each call.
EXPIRED_KEPT = timedelta(days=1)
#: How long a change waits for the one before it.
CHANGE_TIMEOUT = "10s"


def read_revision(conn: Connection) -> int:
    """Return the revision: it moves with every committed change, in the order of commits."""
    value: int = conn.execute(select(snapshot_revision.c.value)).scalar_one()
    return value


def lock_for_change(conn: Connection) -> None:
    """Wait until no other change is under way, before reading what the change depends on.

    The triggers take the same lock at the first write. Taking it first means that two
    administrators can neither act on what the other is changing nor block each other for ever.
    """
    conn.execute(text(f"SET LOCAL lock_timeout = '{CHANGE_TIMEOUT}'"))
    conn.execute(select(snapshot_revision.c.value).with_for_update())


def load(conn: Connection) -> Snapshot:
    """Return every usable key and every tenant, together with the revision they belong to.

    One statement, which PostgreSQL answers from one moment in time at any isolation level,
    autocommit too: no change that the revision counts can be missing.
    """
    revision = 0
    found_keys: dict[bytes, Key] = {}
    found_tenants: dict[str, Tenant] = {}
    for row in conn.execute(_statement()):
        revision = row.value
        if row.id is None:  # no tenant at all
            continue
        tenant = Tenant(str(row.id), row.name, row.zone, row.disabled, _grants(row))
        found_tenants[tenant.id] = tenant
        found_keys.update((key.digest, key) for key in _keys(tenant, row.keys))
    return Snapshot(revision, found_keys, found_tenants)


def _statement() -> Select[Any]:
    return select(
        snapshot_revision.c.value,
        tenants.c.id,
        tenants.c.name,
        tenants.c.zone,
        tenants.c.disabled_at.is_not(None).label("disabled"),
        _patterns(Dimension.MODEL).label("models"),
        _patterns(Dimension.PROVIDER).label("providers"),
        _patterns(Dimension.REGION).label("regions"),
        _usable_keys().label("keys"),
    ).select_from(snapshot_revision.outerjoin(tenants, true()))


def _patterns(dimension: Dimension) -> ScalarSelect[Any]:
    return (
        select(func.array_agg(grants.c.pattern))
        .where(grants.c.tenant_id == tenants.c.id, grants.c.dimension == dimension.value)
        .scalar_subquery()
    )


def _usable_keys() -> ScalarSelect[Any]:
    """Return a tenant's keys as one JSON array of arrays, in the order `_keys` takes apart."""
    fields = func.json_build_array(
        keys.c.id,
        func.encode(keys.c.digest, "hex"),
        keys.c.prefix,
        keys.c.alias,
        keys.c.blocked_at.is_not(None),
        keys.c.expires_at,
    )
    return (
        select(func.json_agg(fields))
        .where(
            and_(
                keys.c.tenant_id == tenants.c.id,
                keys.c.revoked_at.is_(None),
                or_(
                    keys.c.expires_at.is_(None),
                    keys.c.expires_at > func.now() - literal(EXPIRED_KEPT),
                ),
            )
        )
        .scalar_subquery()
    )


def _grants(row: Any) -> Grants:
    return Grants(
        models=frozenset(row.models or ()),
        providers=frozenset(row.providers or ()),
        regions=frozenset(row.regions or ()),
    )


def _keys(tenant: Tenant, fields: Iterable[list[Any]] | None) -> Iterable[Key]:
    for key_id, digest, prefix, alias, blocked, expires_at in fields or ():
        yield Key(
            id=key_id,
            digest=bytes.fromhex(digest),
            prefix=prefix,
            alias=alias,
            tenant=tenant,
            blocked=blocked,
            expires_at=None if expires_at is None else datetime.fromisoformat(expires_at),
        )
