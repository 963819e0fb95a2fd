-- Close one attempt: give back what it held, charge what it used, and write its one row.
--
-- Whoever deletes the open row settles; everybody later finds nothing (`settled` is false).
-- A void attempt never reached a provider and leaves no row.
CREATE FUNCTION wicketgate.settle_v1(
    p_id uuid, p_status text, p_usage_source text, p_usage_flag text, p_prompt bigint,
    p_cached bigint, p_cache_write bigint, p_completion bigint, p_reasoning bigint,
    p_cost numeric, p_computed numeric, p_reported numeric, p_error text,
    p_first_byte timestamptz, p_at timestamptz,
    OUT settled boolean, OUT left_usd numeric, OUT left_tokens numeric, OUT warnings jsonb
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_at timestamptz := coalesce(p_at, clock_timestamp());
    o wicketgate.open_attempts;
    v_price record;
    v_void boolean := p_status = 'void';
BEGIN
    DELETE FROM wicketgate.open_attempts WHERE id = p_id RETURNING * INTO o;
    settled := FOUND;
    IF NOT settled THEN
        RETURN;
    END IF;
    -- In the order of ids, as a hold does.
    PERFORM 1 FROM wicketgate.budget_windows w
    JOIN unnest(o.budget_ids, o.window_starts) AS a (id, starts_at)
        ON w.budget_id = a.id AND w.starts_at = a.starts_at
    ORDER BY w.budget_id FOR UPDATE OF w;
    WITH moved AS (
        UPDATE wicketgate.budget_windows w SET
            held = w.held - a.amount,
            used = w.used + CASE WHEN v_void THEN 0 WHEN b.unit = 'usd' THEN coalesce(p_cost, 0)
                ELSE p_prompt + p_completion END
        FROM unnest(o.budget_ids, o.window_starts, o.amounts) AS a (id, starts_at, amount)
        JOIN wicketgate.budgets b ON b.id = a.id
        WHERE w.budget_id = a.id AND w.starts_at = a.starts_at
        RETURNING b.id, b.unit, b.window_kind, w.starts_at, w.used, w.held, w.warned,
            wicketgate.limit_at(b.limit_amount, b.raised_to, b.raised_until, v_at) AS bound
    ), levels AS (
        SELECT m.*, CASE WHEN bound <= 0 THEN 0 WHEN used >= bound * 0.95 THEN 95
            WHEN used >= bound * 0.80 THEN 80 ELSE 0 END AS level
        FROM moved m
    )
    SELECT min(bound - used - held) FILTER (WHERE unit = 'usd'),
        min(bound - used - held) FILTER (WHERE unit = 'tokens'),
        jsonb_agg(jsonb_build_object('budget', id, 'unit', unit, 'window', window_kind,
            'starts_at', starts_at, 'level', level)) FILTER (WHERE level > warned)
    INTO left_usd, left_tokens, warnings FROM levels;
    IF warnings IS NOT NULL THEN
        UPDATE wicketgate.budget_windows w SET warned = (x->>'level')::int
        FROM jsonb_array_elements(warnings) AS x
        WHERE w.budget_id = (x->>'budget')::uuid AND w.starts_at = (x->>'starts_at')::timestamptz;
    END IF;
    IF v_void THEN
        RETURN;
    END IF;
    SELECT * INTO STRICT v_price FROM wicketgate.price_revisions WHERE id = o.price_id;
    INSERT INTO wicketgate.attempts (
        id, request_id, number, tenant_id, key_id, task_id, task_type, model_requested,
        deployment, model, provider, region, price_id, stream, status, usage_source, usage_flag,
        prompt_tokens, cached_tokens, cache_write_tokens, completion_tokens, reasoning_tokens,
        cost_usd, computed_usd, reported_usd, held_usd, held_tokens, error_code, admitted_at,
        first_byte_at, settled_at, budget_ids
    ) VALUES (
        o.id, o.request_id, o.number, o.tenant_id, o.key_id, o.task_id, o.task_type,
        o.model_requested, v_price.deployment, v_price.model, v_price.provider, v_price.region,
        o.price_id, o.stream, p_status, p_usage_source, p_usage_flag, p_prompt, p_cached,
        p_cache_write, p_completion, p_reasoning, p_cost, p_computed, p_reported, o.held_usd,
        o.held_tokens, p_error, o.admitted_at, p_first_byte, v_at, o.budget_ids
    );
    IF o.task_id IS NOT NULL THEN
        UPDATE wicketgate.tasks SET attempts = attempts + 1,
            requests = requests + CASE WHEN o.number = 1 THEN 1 ELSE 0 END,
            prompt_tokens = prompt_tokens + p_prompt,
            completion_tokens = completion_tokens + p_completion,
            cost_usd = cost_usd + coalesce(p_cost, 0)
        WHERE id = o.task_id;
    END IF;
    -- One shard for each server process: two settlements do not wait for the same sum.
    INSERT INTO wicketgate.spend_quarters AS q (
        quarter, tenant_id, key_id, task_type, deployment, model, provider, shard, requests,
        model_requests, provider_requests, attempts, prompt_tokens, cached_tokens,
        completion_tokens, cost_usd, unpriced
    ) VALUES (
        date_bin('15 minutes', o.admitted_at, '2000-01-01 00:00:00+00'), o.tenant_id, o.key_id,
        coalesce(o.task_type, ''), v_price.deployment, v_price.model, v_price.provider,
        pg_backend_pid() % 16, (o.number = 1)::int, o.first_of_model::int,
        o.first_of_provider::int, 1, p_prompt, p_cached, p_completion, coalesce(p_cost, 0),
        (p_cost IS NULL)::int
    ) ON CONFLICT ON CONSTRAINT pk_spend_quarters DO UPDATE SET
        requests = q.requests + excluded.requests,
        model_requests = q.model_requests + excluded.model_requests,
        provider_requests = q.provider_requests + excluded.provider_requests,
        attempts = q.attempts + 1,
        prompt_tokens = q.prompt_tokens + excluded.prompt_tokens,
        cached_tokens = q.cached_tokens + excluded.cached_tokens,
        completion_tokens = q.completion_tokens + excluded.completion_tokens,
        cost_usd = q.cost_usd + excluded.cost_usd,
        unpriced = q.unpriced + excluded.unpriced;
END
$$;

-- Close one attempt whose lease has run out, at all that it held; return its id, or NULL when
-- there is none. One at a time: window rows of several would be locked out of order.
CREATE FUNCTION wicketgate.sweep_v1(p_at timestamptz) RETURNS uuid
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_at timestamptz := coalesce(p_at, clock_timestamp());
    o record;
BEGIN
    SELECT id, prompt_tokens, output_tokens, held_usd INTO o FROM wicketgate.open_attempts
    WHERE lease_until < v_at ORDER BY lease_until LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM wicketgate.settle_v1(o.id, 'abandoned', 'estimated', 'abandoned', o.prompt_tokens,
        0, 0, o.output_tokens, 0, o.held_usd, o.held_usd, NULL, 'abandoned', NULL, p_at);
    RETURN o.id;
END
$$;

-- Write down a deployment's price unless the newest revision says the same; return its id.
CREATE FUNCTION wicketgate.price_v1(
    p_deployment text, p_model text, p_provider text, p_region text, p_input numeric,
    p_output numeric, p_cached numeric, p_cache_write numeric
) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_id bigint;
BEGIN
    -- Workers that start at one moment must not write the same change twice.
    PERFORM pg_advisory_xact_lock(hashtext('wicketgate.prices'));
    SELECT id INTO v_id FROM wicketgate.price_revisions p
    WHERE p.id = (SELECT max(id) FROM wicketgate.price_revisions WHERE deployment = p_deployment)
        AND (p.model, p.provider, p.region) = (p_model, p_provider, p_region)
        AND (p.input_price, p.output_price, p.cached_price, p.cache_write_price)
            IS NOT DISTINCT FROM (p_input, p_output, p_cached, p_cache_write);
    IF v_id IS NULL THEN
        INSERT INTO wicketgate.price_revisions (deployment, model, provider, region, input_price,
            output_price, cached_price, cache_write_price)
        VALUES (p_deployment, p_model, p_provider, p_region, p_input, p_output, p_cached,
            p_cache_write)
        RETURNING id INTO v_id;
    END IF;
    RETURN v_id;
END
$$;
