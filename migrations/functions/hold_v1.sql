-- The largest output cap that costs no more than *room*; -1 when even the prompt does not fit.
-- What costs nothing always fits.
CREATE FUNCTION wicketgate.fitting_cap(room numeric, prompt numeric, per_token numeric, cap bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN prompt = 0 AND per_token * cap = 0 THEN cap
        WHEN prompt > room THEN -1
        WHEN per_token * cap <= room - prompt THEN cap
        ELSE div(room - prompt, per_token)::bigint
    END
$$;

-- Set aside what one attempt may use, under every budget that covers it, or say which refuses.
--
-- verdict: `held`, `budget_exceeded`, `request_too_large`, `price_missing`, or `again` when
-- another call opened the same task at the same moment. Window rows are
-- locked in the order of budget ids, so that no two calls wait for each other. The clock is
-- the database's, one for all replicas; p_at is for tests.
CREATE FUNCTION wicketgate.hold_v1(
    p_id uuid, p_request uuid, p_number int, p_first_of_model boolean,
    p_first_of_provider boolean, p_tenant uuid, p_key uuid, p_task text, p_task_type text,
    p_task_budget jsonb, p_model_requested text, p_price bigint, p_stream boolean,
    p_prompt bigint, p_writes_cache boolean, p_outputs int, p_cap bigint, p_floor bigint,
    p_usd_left numeric, p_tokens_left numeric, p_lease interval, p_at timestamptz,
    OUT verdict text, OUT cap bigint, OUT held_usd numeric, OUT held_tokens bigint,
    OUT left_usd numeric, OUT left_tokens numeric, OUT scope text, OUT unit text,
    OUT window_kind text, OUT resets_at timestamptz, OUT on_exhausted text
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_at timestamptz := coalesce(p_at, clock_timestamp());
    v_floor bigint := least(p_floor, p_cap);
    v_price record;
    v_zone text;
    v_task uuid;
    v_new_task boolean := false;
    v_prompt_usd numeric;
    v_token_usd numeric;
    b record;
    v_budget uuid;
    v_used numeric;
    v_room numeric;
    v_prompt numeric;
    v_per numeric;
    v_fits bigint;
    v_ids uuid[] := '{}';
    v_starts timestamptz[] := '{}';
    v_units text[] := '{}';
    v_room_usd numeric;
    v_room_tokens numeric;
    v_amounts numeric[];
BEGIN
    -- A budget that is being made waits for the holds under way, and the next ones for it.
    PERFORM pg_advisory_xact_lock_shared(hashtext('wicketgate.budgets'));
    SELECT * INTO STRICT v_price FROM wicketgate.price_revisions WHERE id = p_price;
    SELECT zone INTO STRICT v_zone FROM wicketgate.tenants WHERE id = p_tenant;
    IF p_task IS NOT NULL THEN
        SELECT id INTO v_task FROM wicketgate.tasks WHERE tenant_id = p_tenant AND name = p_task;
        v_new_task := v_task IS NULL;
    END IF;
    -- At the dearest rate its tokens may be charged at. greatest() passes over NULL, but without
    -- an input price the others are not enough.
    v_prompt_usd := p_prompt * CASE WHEN v_price.input_price IS NOT NULL THEN greatest(
        v_price.input_price, v_price.cached_price,
        CASE WHEN p_writes_cache THEN v_price.cache_write_price END) END;
    v_token_usd := p_outputs * CASE WHEN p_cap = 0 THEN coalesce(v_price.output_price, 0)
        ELSE v_price.output_price END;
    cap := p_cap;
    FOR b IN
        SELECT x.id, x.unit, x.window_kind, x.on_exhausted,
            wicketgate.limit_at(x.limit_amount, x.raised_to, x.raised_until, v_at) AS bound,
            wicketgate.window_start(x.window_kind, v_zone, v_at, x.created_at) AS starts_at,
            CASE WHEN x.key_id IS NOT NULL THEN 'key' WHEN x.task_type IS NOT NULL THEN 'task type'
                WHEN x.task_id IS NOT NULL THEN 'task' ELSE 'tenant' END AS scope
        FROM wicketgate.budgets x
        WHERE x.tenant_id = p_tenant AND x.removed_at IS NULL
            AND (x.expires_at IS NULL OR x.expires_at > v_at)
            AND (x.key_id IS NULL OR x.key_id = p_key)
            AND (x.task_type IS NULL OR x.task_type = p_task_type)
            AND (x.task_id IS NULL OR x.task_id = v_task)
        UNION ALL
        -- What a task of this type starts with, if this call is its first.
        SELECT NULL, p_task_budget->>'unit', p_task_budget->>'window',
            p_task_budget->>'on_exhausted', (p_task_budget->>'limit')::numeric, v_at, 'task'
        WHERE v_new_task AND p_task_budget IS NOT NULL
        UNION ALL
        SELECT NULL, 'usd', 'request', 'downgrade', p_usd_left, v_at, 'request'
        WHERE p_usd_left IS NOT NULL
        UNION ALL
        SELECT NULL, 'tokens', 'request', 'downgrade', p_tokens_left, v_at, 'request'
        WHERE p_tokens_left IS NOT NULL
        ORDER BY 1 NULLS LAST
    LOOP
        v_used := 0;
        IF b.id IS NOT NULL THEN
            SELECT w.used + w.held INTO v_used FROM wicketgate.budget_windows w
            WHERE w.budget_id = b.id AND w.starts_at = b.starts_at FOR UPDATE;
            IF NOT FOUND THEN
                INSERT INTO wicketgate.budget_windows (budget_id, starts_at)
                VALUES (b.id, b.starts_at) ON CONFLICT DO NOTHING;
                SELECT w.used + w.held INTO STRICT v_used FROM wicketgate.budget_windows w
                WHERE w.budget_id = b.id AND w.starts_at = b.starts_at FOR UPDATE;
            END IF;
        END IF;
        IF b.unit = 'usd' AND (v_prompt_usd IS NULL OR v_token_usd IS NULL) THEN
            verdict := 'price_missing';
            RETURN;
        END IF;
        v_prompt := CASE b.unit WHEN 'usd' THEN v_prompt_usd ELSE p_prompt END;
        v_per := CASE b.unit WHEN 'usd' THEN v_token_usd ELSE p_outputs END;
        v_room := b.bound - v_used;
        v_fits := wicketgate.fitting_cap(v_room, v_prompt, v_per, cap);
        IF v_fits < v_floor THEN
            verdict := CASE WHEN b.bound > 0 AND b.scope <> 'request'
                AND v_prompt + v_per * v_floor > b.bound
                THEN 'request_too_large' ELSE 'budget_exceeded' END;
            scope := b.scope;
            unit := b.unit;
            window_kind := b.window_kind;
            on_exhausted := b.on_exhausted;
            resets_at := CASE WHEN b.scope <> 'request'
                THEN wicketgate.window_end(b.window_kind, v_zone, v_at) END;
            cap := NULL;
            RETURN;
        END IF;
        cap := v_fits;
        IF b.scope <> 'request' THEN
            -- least() passes over NULL.
            v_room_usd := CASE b.unit WHEN 'usd' THEN least(v_room_usd, v_room) ELSE v_room_usd END;
            v_room_tokens := CASE b.unit WHEN 'tokens' THEN least(v_room_tokens, v_room)
                ELSE v_room_tokens END;
        END IF;
        IF b.id IS NOT NULL THEN
            v_ids := v_ids || b.id;
            v_starts := v_starts || b.starts_at;
            v_units := v_units || b.unit;
        END IF;
    END LOOP;

    IF v_new_task THEN
        INSERT INTO wicketgate.tasks (tenant_id, name, task_type, opened_at)
        VALUES (p_tenant, p_task, p_task_type, v_at)
        ON CONFLICT (tenant_id, name) DO NOTHING RETURNING id INTO v_task;
        IF v_task IS NULL THEN
            verdict := 'again';
            RETURN;
        END IF;
        IF p_task_budget IS NOT NULL THEN
            INSERT INTO wicketgate.budgets
                (tenant_id, task_id, unit, limit_amount, window_kind, on_exhausted, created_at)
            VALUES (p_tenant, v_task, p_task_budget->>'unit', (p_task_budget->>'limit')::numeric,
                p_task_budget->>'window', p_task_budget->>'on_exhausted', v_at)
            RETURNING id INTO v_budget;
            v_ids := v_ids || v_budget;
            v_starts := v_starts || wicketgate.window_start(p_task_budget->>'window', v_zone, v_at, v_at);
            v_units := v_units || (p_task_budget->>'unit');
            INSERT INTO wicketgate.budget_windows (budget_id, starts_at)
            VALUES (v_budget, v_starts[array_length(v_starts, 1)]);
        END IF;
    END IF;
    verdict := 'held';
    held_usd := v_prompt_usd + v_token_usd * cap;
    held_tokens := p_prompt + p_outputs * cap;
    left_usd := v_room_usd - held_usd;
    left_tokens := v_room_tokens - held_tokens;
    SELECT array_agg(CASE u WHEN 'usd' THEN held_usd ELSE held_tokens END ORDER BY n) INTO v_amounts
    FROM unnest(v_units) WITH ORDINALITY AS units (u, n);
    UPDATE wicketgate.budget_windows w SET held = w.held + a.amount
    FROM unnest(v_ids, v_starts, v_amounts) AS a (id, starts_at, amount)
    WHERE w.budget_id = a.id AND w.starts_at = a.starts_at;
    INSERT INTO wicketgate.open_attempts (
        id, request_id, number, first_of_model, first_of_provider, tenant_id, key_id, task_id,
        task_type, model_requested, price_id, stream, prompt_tokens, output_tokens, held_usd,
        held_tokens, admitted_at, lease_until, budget_ids, window_starts, amounts
    ) VALUES (
        p_id, p_request, p_number, p_first_of_model, p_first_of_provider, p_tenant, p_key, v_task,
        p_task_type, p_model_requested, p_price, p_stream, p_prompt, p_outputs * cap, held_usd,
        held_tokens, v_at, v_at + p_lease, v_ids, v_starts, coalesce(v_amounts, '{}')
    );
END
$$;
