"""The tables of schema `wicketgate`, as the newest migration leaves them.

Triggers, functions and the monthly partitions of `attempts` live in the migrations only: one
trigger moves `snapshot_revision` and notifies at every statement on tenants, keys and grants,
others keep `audit_log`, `attempts`, `adjustments` and `price_revisions` append-only.
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
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

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


def _moment(name: str, *, default: str | None = None) -> Column[object]:
    given = None if default is None else text(default)
    return Column(name, DateTime(timezone=True), nullable=False, server_default=given)


def _text(name: str) -> Column[object]:
    return Column(name, Text(), nullable=False)


def _sum(name: str) -> Column[object]:
    return Column(name, BigInteger(), nullable=False, server_default=text("0"))


def _amount(name: str, *, default: str | None = None) -> Column[object]:
    """Return an amount of US dollars, or of a budget's unit: exact, never rounded."""
    given = None if default is None else text(default)
    return Column(name, Numeric(), nullable=False, server_default=given)


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

price_revisions = Table(
    "price_revisions",
    metadata,
    Column("id", BigInteger(), Identity(always=True), primary_key=True),
    _text("deployment"),
    _text("model"),
    _text("provider"),
    _text("region"),
    # US dollars for one token; NULL where the entry states none.
    Column("input_price", Numeric()),
    Column("output_price", Numeric()),
    Column("cached_price", Numeric()),
    Column("cache_write_price", Numeric()),
    _moment("valid_from", default="now()"),
    CheckConstraint("input_price >= 0", name="input_not_negative"),
    CheckConstraint("output_price >= 0", name="output_not_negative"),
    CheckConstraint("cached_price >= 0", name="cached_not_negative"),
    CheckConstraint("cache_write_price >= 0", name="cache_write_not_negative"),
    Index("ix_price_revisions_deployment", "deployment", "id"),
)

tasks = Table(
    "tasks",
    metadata,
    _id(),
    _tenant_id(),
    _text("name"),
    Column("task_type", Text()),
    Column("state", Text(), nullable=False, server_default=text("'open'")),
    _moment("opened_at", default="now()"),
    _time("ended_at"),
    *(_sum(name) for name in ("requests", "attempts", "prompt_tokens", "completion_tokens")),
    _amount("cost_usd", default="0"),
    UniqueConstraint("tenant_id", "name"),
    CheckConstraint("state IN ('open', 'finished', 'failed')", name="state_is_known"),
)

budgets = Table(
    "budgets",
    metadata,
    _id(),
    _tenant_id(),
    Column("key_id", Uuid(), ForeignKey("wicketgate.keys.id")),
    Column("task_type", Text()),
    Column("task_id", Uuid(), ForeignKey("wicketgate.tasks.id")),
    _text("unit"),
    _amount("limit_amount"),
    _text("window_kind"),
    Column("on_exhausted", Text(), nullable=False, server_default=text("'refuse'")),
    Column("raised_to", Numeric()),
    _time("raised_until"),
    _created_at(),
    _time("expires_at"),
    _time("removed_at"),
    CheckConstraint("unit IN ('usd', 'tokens')", name="unit_is_known"),
    CheckConstraint("limit_amount >= 0", name="limit_not_negative"),
    CheckConstraint("window_kind IN ('day', 'week', 'month', 'total')", name="window_is_known"),
    CheckConstraint("on_exhausted IN ('refuse', 'downgrade')", name="on_exhausted_is_known"),
    CheckConstraint("raised_to >= 0", name="raise_not_negative"),
    CheckConstraint("num_nonnulls(key_id, task_type, task_id) <= 1", name="one_scope"),
    CheckConstraint("(raised_to IS NULL) = (raised_until IS NULL)", name="raise_ends"),
    # One budget for one scope, unit and window; what was removed does not count.
    Index(
        "uq_budgets_scope",
        *("tenant_id", "key_id", "task_type", "task_id", "unit", "window_kind"),
        unique=True,
        postgresql_nulls_not_distinct=True,
        postgresql_where=text("removed_at IS NULL"),
    ),
)

budget_windows = Table(
    "budget_windows",
    metadata,
    Column("budget_id", Uuid(), ForeignKey("wicketgate.budgets.id"), primary_key=True),
    Column("starts_at", DateTime(timezone=True), primary_key=True),
    _amount("used", default="0"),
    _amount("held", default="0"),
    Column("warned", SmallInteger(), nullable=False, server_default=text("0")),
    CheckConstraint("used >= 0", name="used_not_negative"),
    CheckConstraint("held >= 0", name="held_not_negative"),
)

open_attempts = Table(
    "open_attempts",
    metadata,
    Column("id", Uuid(), primary_key=True),
    Column("request_id", Uuid(), nullable=False),
    Column("number", Integer(), nullable=False),
    Column("first_of_model", Boolean(), nullable=False),
    Column("first_of_provider", Boolean(), nullable=False),
    Column("tenant_id", Uuid(), nullable=False),
    Column("key_id", Uuid(), nullable=False),
    Column("task_id", Uuid()),
    Column("task_type", Text()),
    _text("model_requested"),
    Column("price_id", BigInteger(), ForeignKey("wicketgate.price_revisions.id"), nullable=False),
    Column("stream", Boolean(), nullable=False),
    Column("prompt_tokens", BigInteger(), nullable=False),
    Column("output_tokens", BigInteger(), nullable=False),
    Column("held_usd", Numeric()),
    Column("held_tokens", BigInteger(), nullable=False),
    _moment("admitted_at"),
    _moment("lease_until"),
    Column("budget_ids", ARRAY(Uuid()), nullable=False),
    Column("window_starts", ARRAY(DateTime(timezone=True)), nullable=False),
    Column("amounts", ARRAY(Numeric()), nullable=False),
    Index(None, "lease_until"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", Uuid(), nullable=False),
    Column("request_id", Uuid(), nullable=False),
    Column("number", Integer(), nullable=False),
    Column("tenant_id", Uuid(), nullable=False),
    Column("key_id", Uuid(), nullable=False),
    Column("task_id", Uuid()),
    Column("task_type", Text()),
    *(_text(name) for name in ("model_requested", "deployment", "model", "provider", "region")),
    Column("price_id", BigInteger(), nullable=False),
    Column("stream", Boolean(), nullable=False),
    _text("status"),
    _text("usage_source"),
    Column("usage_flag", Text()),
    *(
        Column(f"{kind}_tokens", BigInteger(), nullable=False)
        for kind in ("prompt", "cached", "cache_write", "completion", "reasoning")
    ),
    *(Column(f"{kind}_usd", Numeric()) for kind in ("cost", "computed", "reported", "held")),
    Column("held_tokens", BigInteger(), nullable=False),
    Column("error_code", Text()),
    _moment("admitted_at"),
    _time("first_byte_at"),
    _moment("settled_at"),
    Column("budget_ids", ARRAY(Uuid()), nullable=False),
    PrimaryKeyConstraint("id", "admitted_at"),
    CheckConstraint(
        "status IN ('ok', 'partial', 'failed', 'cancelled', 'abandoned')", name="status_is_known"
    ),
    CheckConstraint(
        "usage_source IN ('provider', 'estimated', 'none')", name="usage_source_is_known"
    ),
    CheckConstraint(
        "least(prompt_tokens, cached_tokens, cache_write_tokens, completion_tokens,"
        " reasoning_tokens) >= 0",
        name="tokens_not_negative",
    ),
    CheckConstraint(
        "cost_usd >= 0 AND computed_usd >= 0 AND reported_usd >= 0", name="cost_not_negative"
    ),
    Index(None, "request_id"),
    Index(None, "tenant_id", "admitted_at"),
    Index(None, "admitted_at"),
    Index("ix_attempts_task_id", "task_id", postgresql_where=text("task_id IS NOT NULL")),
    postgresql_partition_by="RANGE (admitted_at)",
)

#: Sums of `attempts` for each quarter of an hour, from which a day in any zone adds up. The
#: shard keeps settlements of one moment from waiting for each other.
spend_quarters = Table(
    "spend_quarters",
    metadata,
    Column("quarter", DateTime(timezone=True), primary_key=True),
    Column("tenant_id", Uuid(), primary_key=True),
    Column("key_id", Uuid(), primary_key=True),
    *(
        Column(name, Text(), primary_key=True)
        for name in ("task_type", "deployment", "model", "provider")
    ),
    Column("shard", SmallInteger(), primary_key=True, autoincrement=False),
    *(
        Column(name, BigInteger(), nullable=False)
        for name in (
            *("requests", "model_requests", "provider_requests", "attempts"),
            *("prompt_tokens", "cached_tokens", "completion_tokens"),
        )
    ),
    _amount("cost_usd"),
    Column("unpriced", BigInteger(), nullable=False),
)

adjustments = Table(
    "adjustments",
    metadata,
    Column("id", BigInteger(), Identity(always=True), primary_key=True),
    _moment("at", default="now()"),
    _tenant_id(),
    Column("attempt_id", Uuid()),
    _amount("amount_usd"),
    _text("reason"),
    _text("actor"),
)

hosting = Table(
    "hosting",
    metadata,
    Column("id", BigInteger(), Identity(always=True), primary_key=True),
    _text("deployment"),
    _amount("usd_per_hour"),
    # Output tokens; NULL where nobody measured.
    Column("tokens_per_second", Numeric()),
    _moment("valid_from", default="now()"),
    CheckConstraint("usd_per_hour >= 0", name="usd_not_negative"),
    CheckConstraint("tokens_per_second > 0", name="speed_above_zero"),
    Index("ix_hosting_deployment", "deployment", "id"),
)
