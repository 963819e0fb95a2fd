"""Create budgets, tasks, prices, attempts and the functions that hold and settle.

Revision ID: 0002
Revises: 0001
Create Date: 2026-12-01

Locks: none for long; every table is new, and the references lock tenants and keys for a moment.
Old code: unaffected, it never reads these tables.
Undo: drops every budget and the whole ledger with it.
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

FUNCTIONS = Path(__file__).parents[1] / "functions"

TABLES = """
CREATE TABLE wicketgate.price_revisions (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_price_revisions PRIMARY KEY,
    deployment text NOT NULL,
    model text NOT NULL,
    provider text NOT NULL,
    region text NOT NULL,
    input_price numeric CONSTRAINT ck_price_revisions_input_not_negative CHECK (input_price >= 0),
    output_price numeric
        CONSTRAINT ck_price_revisions_output_not_negative CHECK (output_price >= 0),
    cached_price numeric
        CONSTRAINT ck_price_revisions_cached_not_negative CHECK (cached_price >= 0),
    cache_write_price numeric
        CONSTRAINT ck_price_revisions_cache_write_not_negative CHECK (cache_write_price >= 0),
    valid_from timestamptz DEFAULT now() NOT NULL
);
CREATE INDEX ix_price_revisions_deployment ON wicketgate.price_revisions (deployment, id);

CREATE TABLE wicketgate.tasks (
    id uuid DEFAULT gen_random_uuid() NOT NULL CONSTRAINT pk_tasks PRIMARY KEY,
    tenant_id uuid NOT NULL CONSTRAINT fk_tasks_tenant_id REFERENCES wicketgate.tenants (id),
    name text NOT NULL,
    task_type text,
    state text DEFAULT 'open' NOT NULL
        CONSTRAINT ck_tasks_state_is_known CHECK (state IN ('open', 'finished', 'failed')),
    opened_at timestamptz DEFAULT now() NOT NULL,
    ended_at timestamptz,
    requests bigint DEFAULT 0 NOT NULL,
    attempts bigint DEFAULT 0 NOT NULL,
    prompt_tokens bigint DEFAULT 0 NOT NULL,
    completion_tokens bigint DEFAULT 0 NOT NULL,
    cost_usd numeric DEFAULT 0 NOT NULL,
    CONSTRAINT uq_tasks_tenant_id_name UNIQUE (tenant_id, name)
);

CREATE TABLE wicketgate.budgets (
    id uuid DEFAULT gen_random_uuid() NOT NULL CONSTRAINT pk_budgets PRIMARY KEY,
    tenant_id uuid NOT NULL CONSTRAINT fk_budgets_tenant_id REFERENCES wicketgate.tenants (id),
    key_id uuid CONSTRAINT fk_budgets_key_id REFERENCES wicketgate.keys (id),
    task_type text,
    task_id uuid CONSTRAINT fk_budgets_task_id REFERENCES wicketgate.tasks (id),
    unit text NOT NULL CONSTRAINT ck_budgets_unit_is_known CHECK (unit IN ('usd', 'tokens')),
    limit_amount numeric NOT NULL
        CONSTRAINT ck_budgets_limit_not_negative CHECK (limit_amount >= 0),
    window_kind text NOT NULL CONSTRAINT ck_budgets_window_is_known
        CHECK (window_kind IN ('day', 'week', 'month', 'total')),
    on_exhausted text DEFAULT 'refuse' NOT NULL CONSTRAINT ck_budgets_on_exhausted_is_known
        CHECK (on_exhausted IN ('refuse', 'downgrade')),
    raised_to numeric CONSTRAINT ck_budgets_raise_not_negative CHECK (raised_to >= 0),
    raised_until timestamptz,
    created_at timestamptz DEFAULT now() NOT NULL,
    expires_at timestamptz,
    removed_at timestamptz,
    CONSTRAINT ck_budgets_one_scope CHECK (num_nonnulls(key_id, task_type, task_id) <= 1),
    CONSTRAINT ck_budgets_raise_ends CHECK ((raised_to IS NULL) = (raised_until IS NULL))
);
CREATE UNIQUE INDEX uq_budgets_scope ON wicketgate.budgets
    (tenant_id, key_id, task_type, task_id, unit, window_kind) NULLS NOT DISTINCT
    WHERE removed_at IS NULL;

CREATE TABLE wicketgate.budget_windows (
    budget_id uuid NOT NULL
        CONSTRAINT fk_budget_windows_budget_id REFERENCES wicketgate.budgets (id),
    starts_at timestamptz NOT NULL,
    used numeric DEFAULT 0 NOT NULL
        CONSTRAINT ck_budget_windows_used_not_negative CHECK (used >= 0),
    held numeric DEFAULT 0 NOT NULL
        CONSTRAINT ck_budget_windows_held_not_negative CHECK (held >= 0),
    warned smallint DEFAULT 0 NOT NULL,
    CONSTRAINT pk_budget_windows PRIMARY KEY (budget_id, starts_at)
) WITH (fillfactor = 50);

CREATE TABLE wicketgate.open_attempts (
    id uuid NOT NULL CONSTRAINT pk_open_attempts PRIMARY KEY,
    request_id uuid NOT NULL,
    number integer NOT NULL,
    first_of_model boolean NOT NULL,
    first_of_provider boolean NOT NULL,
    tenant_id uuid NOT NULL,
    key_id uuid NOT NULL,
    task_id uuid,
    task_type text,
    model_requested text NOT NULL,
    price_id bigint NOT NULL
        CONSTRAINT fk_open_attempts_price_id REFERENCES wicketgate.price_revisions (id),
    stream boolean NOT NULL,
    prompt_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    held_usd numeric,
    held_tokens bigint NOT NULL,
    admitted_at timestamptz NOT NULL,
    lease_until timestamptz NOT NULL,
    budget_ids uuid[] NOT NULL,
    window_starts timestamptz[] NOT NULL,
    amounts numeric[] NOT NULL
);
CREATE INDEX ix_open_attempts_lease_until ON wicketgate.open_attempts (lease_until);

CREATE TABLE wicketgate.attempts (
    id uuid NOT NULL,
    request_id uuid NOT NULL,
    number integer NOT NULL,
    tenant_id uuid NOT NULL,
    key_id uuid NOT NULL,
    task_id uuid,
    task_type text,
    model_requested text NOT NULL,
    deployment text NOT NULL,
    model text NOT NULL,
    provider text NOT NULL,
    region text NOT NULL,
    price_id bigint NOT NULL,
    stream boolean NOT NULL,
    status text NOT NULL CONSTRAINT ck_attempts_status_is_known
        CHECK (status IN ('ok', 'partial', 'failed', 'cancelled', 'abandoned')),
    usage_source text NOT NULL CONSTRAINT ck_attempts_usage_source_is_known
        CHECK (usage_source IN ('provider', 'estimated', 'none')),
    usage_flag text,
    prompt_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    cache_write_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    reasoning_tokens bigint NOT NULL,
    cost_usd numeric,
    computed_usd numeric,
    reported_usd numeric,
    held_usd numeric,
    held_tokens bigint NOT NULL,
    error_code text,
    admitted_at timestamptz NOT NULL,
    first_byte_at timestamptz,
    settled_at timestamptz NOT NULL,
    budget_ids uuid[] NOT NULL,
    CONSTRAINT pk_attempts PRIMARY KEY (id, admitted_at),
    CONSTRAINT ck_attempts_tokens_not_negative CHECK (
        least(prompt_tokens, cached_tokens, cache_write_tokens, completion_tokens,
            reasoning_tokens) >= 0),
    CONSTRAINT ck_attempts_cost_not_negative CHECK (
        cost_usd >= 0 AND computed_usd >= 0 AND reported_usd >= 0)
) PARTITION BY RANGE (admitted_at);
CREATE INDEX ix_attempts_request_id ON wicketgate.attempts (request_id);
CREATE INDEX ix_attempts_tenant_id_admitted_at ON wicketgate.attempts (tenant_id, admitted_at);
CREATE INDEX ix_attempts_task_id ON wicketgate.attempts (task_id) WHERE task_id IS NOT NULL;
CREATE TABLE wicketgate.attempts_default PARTITION OF wicketgate.attempts DEFAULT;

CREATE TABLE wicketgate.spend_quarters (
    quarter timestamptz NOT NULL,
    tenant_id uuid NOT NULL,
    key_id uuid NOT NULL,
    task_type text NOT NULL,
    deployment text NOT NULL,
    model text NOT NULL,
    provider text NOT NULL,
    shard smallint NOT NULL,
    requests bigint NOT NULL,
    model_requests bigint NOT NULL,
    provider_requests bigint NOT NULL,
    attempts bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    cost_usd numeric NOT NULL,
    unpriced bigint NOT NULL,
    CONSTRAINT pk_spend_quarters PRIMARY KEY
        (quarter, tenant_id, key_id, task_type, deployment, model, provider, shard)
) WITH (fillfactor = 50);

CREATE TABLE wicketgate.adjustments (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_adjustments PRIMARY KEY,
    at timestamptz DEFAULT now() NOT NULL,
    tenant_id uuid NOT NULL CONSTRAINT fk_adjustments_tenant_id REFERENCES wicketgate.tenants (id),
    attempt_id uuid,
    amount_usd numeric NOT NULL,
    reason text NOT NULL,
    actor text NOT NULL
);
"""

APPEND_ONLY = """
CREATE FUNCTION wicketgate.make_partition(month timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    first timestamptz := date_trunc('month', month, 'UTC');
    name text := 'attempts_' || to_char(first AT TIME ZONE 'UTC', 'YYYYMM');
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('wicketgate.partitions'));
    IF to_regclass('wicketgate.' || name) IS NULL THEN
        EXECUTE format('CREATE TABLE wicketgate.%I PARTITION OF wicketgate.attempts'
            ' FOR VALUES FROM (%L) TO (%L)', name, first,
            ((first AT TIME ZONE 'UTC') + interval '1 month') AT TIME ZONE 'UTC');
        EXECUTE format('CREATE TRIGGER no_truncate BEFORE TRUNCATE ON wicketgate.%I'
            ' FOR EACH STATEMENT EXECUTE FUNCTION wicketgate.refuse_change()', name);
    END IF;
END
$$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON wicketgate.attempts
    FOR EACH ROW EXECUTE FUNCTION wicketgate.refuse_change();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON wicketgate.attempts
    FOR EACH STATEMENT EXECUTE FUNCTION wicketgate.refuse_change();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON wicketgate.attempts_default
    FOR EACH STATEMENT EXECUTE FUNCTION wicketgate.refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON wicketgate.adjustments
    FOR EACH STATEMENT EXECUTE FUNCTION wicketgate.refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON wicketgate.price_revisions
    FOR EACH STATEMENT EXECUTE FUNCTION wicketgate.refuse_change();
ALTER TABLE wicketgate.attempts ENABLE ALWAYS TRIGGER append_only;
ALTER TABLE wicketgate.adjustments ENABLE ALWAYS TRIGGER append_only;
ALTER TABLE wicketgate.price_revisions ENABLE ALWAYS TRIGGER append_only;
SELECT wicketgate.make_partition(now());
SELECT wicketgate.make_partition(now() + interval '1 month');
"""


def upgrade() -> None:
    op.execute(TABLES)
    op.execute(APPEND_ONLY)
    for name in ("windows_v1", "hold_v1", "settle_v1"):
        op.execute((FUNCTIONS / f"{name}.sql").read_text(encoding="utf-8").replace(":", r"\:"))


def downgrade() -> None:
    for function in (
        "make_partition", "price_v1", "sweep_v1", "settle_v1", "hold_v1", "fitting_cap",
        "limit_at", "window_end", "window_start",
    ):  # fmt: skip
        op.execute(f"DROP FUNCTION wicketgate.{function}")
    for table in (
        "adjustments", "spend_quarters", "attempts", "open_attempts", "budget_windows",
        "budgets", "tasks", "price_revisions",
    ):  # fmt: skip
        op.drop_table(table, schema="wicketgate")
