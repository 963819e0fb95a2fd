"""Create tenants, keys, grants, the audit log and the snapshot revision.

Revision ID: 0001
Revises:
Create Date: 2026-12-01

Locks: none; every table is new.
Old code: there is none that reads this schema.
Undo: drops the tables with every tenant, key and grant, and the audit log with them. The empty
schema stays, because it is home to Alembic's own table.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SCHEMA = "wicketgate"
IN_SNAPSHOT = ("tenants", "keys", "grants")

# Before the statement, not after: the revision's row is locked before any row of the tables,
# so two writers take their locks in one order and the order of revisions is that of commits.
MOVE_SNAPSHOT = """
CREATE FUNCTION wicketgate.move_snapshot() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moved bigint;
BEGIN
    UPDATE wicketgate.snapshot_revision SET value = value + 1 RETURNING value INTO STRICT moved;
    PERFORM pg_notify('wicketgate_snapshot', moved::text);
    RETURN NULL;
END
$$
"""

REFUSE_CHANGE = """
CREATE FUNCTION wicketgate.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '%.% is append-only: % is refused', TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'restrict_violation';
END
$$
"""


def id_column() -> sa.Column:
    return sa.Column("id", sa.Uuid(), server_default=sa.text("gen_random_uuid()"), nullable=False)


def tenant_id_column() -> sa.Column:
    return sa.Column("tenant_id", sa.Uuid(), nullable=False)


def time_column(name: str, *, default: str | None = None) -> sa.Column:
    return sa.Column(
        name,
        sa.DateTime(timezone=True),
        server_default=None if default is None else sa.text(default),
        nullable=default is None,
    )


def upgrade() -> None:
    create_tenants()
    create_keys()
    create_grants()
    create_snapshot_revision()
    create_audit_log()


def create_tenants() -> None:
    op.create_table(
        "tenants",
        id_column(),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        time_column("disabled_at"),
        time_column("created_at", default="now()"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
        sa.UniqueConstraint("name", name=op.f("uq_tenants_name")),
        schema=SCHEMA,
    )


def create_keys() -> None:
    op.create_table(
        "keys",
        id_column(),
        tenant_id_column(),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("alias", sa.Text(), nullable=True),
        time_column("created_at", default="now()"),
        time_column("expires_at"),
        time_column("blocked_at"),
        time_column("revoked_at"),
        sa.Column("rotated_from", sa.Uuid(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
        sa.ForeignKeyConstraint(
            ["tenant_id"], [f"{SCHEMA}.tenants.id"], name=op.f("fk_keys_tenant_id")
        ),
        sa.ForeignKeyConstraint(
            ["rotated_from"], [f"{SCHEMA}.keys.id"], name=op.f("fk_keys_rotated_from")
        ),
        sa.UniqueConstraint("digest", name=op.f("uq_keys_digest")),
        sa.UniqueConstraint("rotated_from", name=op.f("uq_keys_rotated_from")),
        sa.CheckConstraint("octet_length(digest) = 32", name=op.f("ck_keys_digest_is_sha256")),
        sa.CheckConstraint(
            "expires_at BETWEEN '2000-01-01 00:00:00+00' AND '9999-01-01 00:00:00+00'",
            name=op.f("ck_keys_expires_at_is_finite"),
        ),
        schema=SCHEMA,
    )
    op.create_index(op.f("ix_keys_tenant_id"), "keys", ["tenant_id"], schema=SCHEMA)


def create_grants() -> None:
    op.create_table(
        "grants",
        id_column(),
        tenant_id_column(),
        sa.Column("dimension", sa.Text(), nullable=False),
        sa.Column("pattern", sa.Text(), nullable=False),
        time_column("created_at", default="now()"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_grants")),
        sa.ForeignKeyConstraint(
            ["tenant_id"], [f"{SCHEMA}.tenants.id"], name=op.f("fk_grants_tenant_id")
        ),
        sa.UniqueConstraint(
            "tenant_id",
            "dimension",
            "pattern",
            name=op.f("uq_grants_tenant_id_dimension_pattern"),
        ),
        sa.CheckConstraint(
            "dimension IN ('model', 'provider', 'region')",
            name=op.f("ck_grants_dimension_is_known"),
        ),
        schema=SCHEMA,
    )


def create_snapshot_revision() -> None:
    op.create_table(
        "snapshot_revision",
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("singleton", name=op.f("pk_snapshot_revision")),
        sa.CheckConstraint("singleton", name=op.f("ck_snapshot_revision_one_row")),
        schema=SCHEMA,
    )
    op.execute("INSERT INTO wicketgate.snapshot_revision (value) VALUES (0)")
    op.execute(MOVE_SNAPSHOT)
    for table in IN_SNAPSHOT:
        op.execute(
            f"CREATE TRIGGER move_snapshot BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE"
            f" ON wicketgate.{table} FOR EACH STATEMENT"
            f" EXECUTE FUNCTION wicketgate.move_snapshot()"
        )


def create_audit_log() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        time_column("at", default="now()"),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
        schema=SCHEMA,
    )
    op.execute(REFUSE_CHANGE)
    op.execute(
        "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON wicketgate.audit_log"
        " FOR EACH STATEMENT EXECUTE FUNCTION wicketgate.refuse_change()"
    )
    # ALWAYS: a session that replays another server's changes is held to it as well.
    op.execute("ALTER TABLE wicketgate.audit_log ENABLE ALWAYS TRIGGER append_only")


def downgrade() -> None:
    for table in ("audit_log", "grants", "keys", "tenants", "snapshot_revision"):
        op.drop_table(table, schema=SCHEMA)
    op.execute("DROP FUNCTION wicketgate.refuse_change()")
    op.execute("DROP FUNCTION wicketgate.move_snapshot()")
