"""The tables of schema `wicketgate`, as the newest migration leaves them.

The triggers live in the migrations only: one that moves `snapshot_revision` and notifies at
every statement on tenants, keys and grants, and one that keeps `audit_log` append-only.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

SCHEMA = "wicketgate"
#: Where the database tells of each new snapshot revision.
SNAPSHOT_CHANNEL = "wicketgate_snapshot"

metadata = MetaData(
    schema=SCHEMA,
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    },
)


def _id() -> Column[object]:
    return Column("id", Uuid(), primary_key=True, server_default=text("gen_random_uuid()"))


def _time(name: str) -> Column[object]:
    """Return a time that is missing until the thing it tells of has happened."""
    return Column(name, DateTime(timezone=True))


def _created_at() -> Column[object]:
    return Column(
        "created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")
    )


def _tenant_id() -> Column[object]:
    return Column("tenant_id", Uuid(), ForeignKey("wicketgate.tenants.id"), nullable=False)


tenants = Table(
    "tenants",
    metadata,
    _id(),
    Column("name", Text(), nullable=False),
    Column("zone", Text(), nullable=False),
    _time("disabled_at"),
    _created_at(),
    UniqueConstraint("name"),
)

keys = Table(
    "keys",
    metadata,
    _id(),
    _tenant_id(),
    Column("digest", LargeBinary(), nullable=False),
    Column("prefix", Text(), nullable=False),
    Column("alias", Text()),
    _created_at(),
    _time("expires_at"),
    _time("blocked_at"),
    _time("revoked_at"),
    Column("rotated_from", Uuid(), ForeignKey("wicketgate.keys.id")),
    UniqueConstraint("digest"),
    # A key is rotated once: after that its successor is the one to rotate.
    UniqueConstraint("rotated_from"),
    CheckConstraint("octet_length(digest) = 32", name="digest_is_sha256"),
    # A time that Python cannot hold (`infinity`) would stop every snapshot from loading.
    CheckConstraint(
        "expires_at BETWEEN '2000-01-01 00:00:00+00' AND '9999-01-01 00:00:00+00'",
        name="expires_at_is_finite",
    ),
    Index(None, "tenant_id"),
)

grants = Table(
    "grants",
    metadata,
    _id(),
    _tenant_id(),
    Column("dimension", Text(), nullable=False),
    Column("pattern", Text(), nullable=False),
    _created_at(),
    UniqueConstraint("tenant_id", "dimension", "pattern"),
    CheckConstraint("dimension IN ('model', 'provider', 'region')", name="dimension_is_known"),
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("id", BigInteger(), Identity(always=True), primary_key=True),
    Column("at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    Column("actor", Text(), nullable=False),
    Column("action", Text(), nullable=False),
    Column("subject", JSONB(), nullable=False),
)

snapshot_revision = Table(
    "snapshot_revision",
    metadata,
    Column("singleton", Boolean(), primary_key=True, server_default=text("true")),
    Column("value", BigInteger(), nullable=False),
    CheckConstraint("singleton", name="one_row"),
)
