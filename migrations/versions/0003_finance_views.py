"""Create what finance reads: the views of schema finance, for role finance_reader.

Revision ID: 0003
Revises: 0002
Create Date: 2026-12-01

Locks: attempts cannot be written while its new index is built, 1.5 s for 5 million rows.
Old code: unaffected, it never reads them.
Undo: drops the views, their schema and the record of hosting costs. The role stays: it belongs to
the whole server, and people may have been granted it.
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

HOSTING = """
CREATE TABLE wicketgate.hosting (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_hosting PRIMARY KEY,
    deployment text NOT NULL,
    usd_per_hour numeric NOT NULL CONSTRAINT ck_hosting_usd_not_negative CHECK (usd_per_hour >= 0),
    tokens_per_second numeric
        CONSTRAINT ck_hosting_speed_above_zero CHECK (tokens_per_second > 0),
    valid_from timestamptz DEFAULT now() NOT NULL
);
CREATE INDEX ix_hosting_deployment ON wicketgate.hosting (deployment, id);
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON wicketgate.hosting
    FOR EACH STATEMENT EXECUTE FUNCTION wicketgate.refuse_change();
ALTER TABLE wicketgate.hosting ENABLE ALWAYS TRIGGER append_only;
"""

# The newest attempts of all tenants together, and any stretch of time.
INDEX = "CREATE INDEX ix_attempts_admitted_at ON wicketgate.attempts (admitted_at)"

VIEWS = {
    # One row for each attempt, those under way too.
    "attempts": """
SELECT a.request_id, a.number AS attempt, t.name AS tenant, a.key_id, k.name AS task, a.task_type,
    a.model_requested, p.model AS model_served, p.deployment, p.provider, p.region,
    a.prompt_tokens, a.cached_tokens, a.cache_write_tokens, a.completion_tokens,
    a.reasoning_tokens, a.cost_usd, a.computed_usd, a.reported_usd, a.usage_source, a.usage_flag,
    a.status, a.error_code, a.admitted_at, a.first_byte_at, a.settled_at,
    a.price_id AS price_revision, p.input_price, p.output_price, p.cached_price,
    p.cache_write_price
FROM (
    SELECT request_id, number, tenant_id, key_id, task_id, task_type, model_requested,
        prompt_tokens, cached_tokens, cache_write_tokens, completion_tokens, reasoning_tokens,
        cost_usd, computed_usd, reported_usd, usage_source, usage_flag, status, error_code,
        admitted_at, first_byte_at, settled_at, price_id
    FROM wicketgate.attempts
    UNION ALL
    SELECT request_id, number, tenant_id, key_id, task_id, task_type, model_requested,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'open', NULL,
        admitted_at, NULL, NULL, price_id
    FROM wicketgate.open_attempts
) a
JOIN wicketgate.tenants t ON t.id = a.tenant_id
JOIN wicketgate.price_revisions p ON p.id = a.price_id
LEFT JOIN wicketgate.tasks k ON k.id = a.task_id
""",
    # One row for each request with an attempt that ended. Built around the first of its attempts,
    # so that a condition on tenant or time is met by an index and not after adding everything up.
    "requests": """
SELECT f.request_id, t.name AS tenant, f.key_id, k.name AS task, f.task_type, f.model_requested,
    s.model_served, s.region, s.attempts, s.prompt_tokens, s.cached_tokens, s.completion_tokens,
    s.cost_usd, CASE WHEN o.request_id IS NULL THEN s.status ELSE 'open' END AS status,
    f.admitted_at, CASE WHEN o.request_id IS NULL THEN s.settled_at END AS settled_at
FROM wicketgate.attempts f
JOIN wicketgate.tenants t ON t.id = f.tenant_id
LEFT JOIN wicketgate.tasks k ON k.id = f.task_id
LEFT JOIN (SELECT DISTINCT request_id FROM wicketgate.open_attempts) o
    ON o.request_id = f.request_id
CROSS JOIN LATERAL (
    SELECT count(*) AS attempts, sum(a.prompt_tokens) AS prompt_tokens,
        sum(a.cached_tokens) AS cached_tokens, sum(a.completion_tokens) AS completion_tokens,
        sum(a.cost_usd) AS cost_usd, max(a.settled_at) AS settled_at,
        (array_agg(a.model ORDER BY a.number DESC))[1] AS model_served,
        (array_agg(a.region ORDER BY a.number DESC))[1] AS region,
        (array_agg(a.status ORDER BY a.number DESC))[1] AS status
    FROM wicketgate.attempts a WHERE a.request_id = f.request_id
) s
WHERE NOT EXISTS (
    SELECT FROM wicketgate.attempts e WHERE e.request_id = f.request_id AND e.number < f.number
)
""",
    # A correction counts on the day it was made.
    "spend_daily": """
SELECT t.name AS tenant, (s.at AT TIME ZONE t.zone)::date AS day, sum(s.requests) AS requests,
    sum(s.attempts) AS attempts, sum(s.prompt_tokens) AS prompt_tokens,
    sum(s.cached_tokens) AS cached_tokens, sum(s.completion_tokens) AS completion_tokens,
    sum(s.cost_usd) AS cost_usd, sum(s.unpriced) AS unpriced_attempts
FROM (
    SELECT tenant_id, quarter AS at, requests, attempts, prompt_tokens, cached_tokens,
        completion_tokens, cost_usd, unpriced
    FROM wicketgate.spend_quarters
    UNION ALL
    SELECT tenant_id, at, 0, 0, 0, 0, 0, amount_usd, 0 FROM wicketgate.adjustments
) s
JOIN wicketgate.tenants t ON t.id = s.tenant_id
GROUP BY t.name, (s.at AT TIME ZONE t.zone)::date
""",
    "spend_by_task": """
SELECT t.name AS tenant, k.name AS task, k.task_type, k.state, k.opened_at, k.ended_at,
    k.requests, k.attempts, k.prompt_tokens, k.completion_tokens, k.cost_usd
FROM wicketgate.tasks k JOIN wicketgate.tenants t ON t.id = k.tenant_id
""",
    # A task's cost is that of all its attempts, those that failed and were tried again too.
    "cost_per_finished_task": """
SELECT t.name AS tenant, k.task_type,
    count(*) FILTER (WHERE k.state = 'finished') AS finished_tasks,
    coalesce(sum(k.cost_usd) FILTER (WHERE k.state = 'finished'), 0) AS finished_cost_usd,
    avg(k.cost_usd) FILTER (WHERE k.state = 'finished') AS cost_usd_per_finished_task,
    count(*) FILTER (WHERE k.state = 'failed') AS failed_tasks,
    coalesce(sum(k.cost_usd) FILTER (WHERE k.state = 'failed'), 0) AS failed_cost_usd,
    count(*) FILTER (WHERE k.state = 'open') AS open_tasks,
    coalesce(sum(k.cost_usd) FILTER (WHERE k.state = 'open'), 0) AS open_cost_usd
FROM wicketgate.tasks k JOIN wicketgate.tenants t ON t.id = k.tenant_id
GROUP BY t.name, k.task_type
""",
    "budgets": """
SELECT b.id, t.name AS tenant, b.key_id, b.task_type, k.name AS task, b.unit, l.bound AS "limit",
    b.window_kind AS "window", coalesce(w.used, 0) AS used, coalesce(w.held, 0) AS held,
    greatest(l.bound - coalesce(w.used, 0) - coalesce(w.held, 0), 0) AS remaining,
    wicketgate.window_end(b.window_kind, t.zone, now()) AS resets_at, b.on_exhausted,
    b.limit_amount AS base_limit, b.raised_until, b.created_at, b.expires_at
FROM wicketgate.budgets b
JOIN wicketgate.tenants t ON t.id = b.tenant_id
LEFT JOIN wicketgate.tasks k ON k.id = b.task_id
LEFT JOIN wicketgate.budget_windows w ON w.budget_id = b.id
    AND w.starts_at = wicketgate.window_start(b.window_kind, t.zone, now(), b.created_at)
CROSS JOIN LATERAL (
    SELECT wicketgate.limit_at(b.limit_amount, b.raised_to, b.raised_until, now()) AS bound
) l
WHERE b.removed_at IS NULL AND (b.expires_at IS NULL OR b.expires_at > now())
""",
    "price_revisions": """
SELECT id AS price_revision, deployment, model, provider, region, input_price, output_price,
    cached_price, cache_write_price, valid_from
FROM wicketgate.price_revisions
""",
    "unit_cost": """
SELECT deployment, usd_per_hour, tokens_per_second,
    usd_per_hour * 1000000 / (tokens_per_second * 3600) AS usd_per_million_tokens, valid_from
FROM wicketgate.hosting
""",
    "adjustments": """
SELECT j.id, j.at, t.name AS tenant, j.attempt_id, j.amount_usd, j.reason, j.actor
FROM wicketgate.adjustments j JOIN wicketgate.tenants t ON t.id = j.tenant_id
""",
    "audit": """
SELECT id, at, actor, action, subject ->> 'tenant' AS tenant, subject FROM wicketgate.audit_log
""",
}

# An administrator may have made the schema, as they may have made ours.
SCHEMA = """
DO $$
BEGIN
    IF to_regnamespace('finance') IS NULL THEN
        CREATE SCHEMA finance;
    END IF;
END
$$
"""

# Roles belong to the server: other databases on it may have made this one, even just now.
ROLE = """
DO $$
DECLARE
    name text;
BEGIN
    IF to_regrole('finance_reader') IS NULL THEN
        IF NOT (SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user) THEN
            RAISE NOTICE 'no right to create role finance_reader, nothing was granted to it';
            RETURN;
        END IF;
        BEGIN
            CREATE ROLE finance_reader NOLOGIN;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
    END IF;
    GRANT USAGE ON SCHEMA finance TO finance_reader;
    FOR name IN SELECT viewname FROM pg_views WHERE schemaname = 'finance' LOOP
        EXECUTE format('GRANT SELECT ON finance.%I TO finance_reader', name);
    END LOOP;
END
$$
"""


def upgrade() -> None:
    op.execute(HOSTING)
    op.execute(INDEX)
    op.execute(SCHEMA)
    for name, query in VIEWS.items():
        op.execute(f"CREATE VIEW finance.{name} AS {query}")
    op.execute(ROLE)


def downgrade() -> None:
    for name in VIEWS:
        op.execute(f"DROP VIEW finance.{name}")
    op.execute("DROP SCHEMA finance")
    op.execute("DROP INDEX wicketgate.ix_attempts_admitted_at")
    op.drop_table("hosting", schema="wicketgate")
