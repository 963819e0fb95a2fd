-- The first moment of the window that holds *at*, in the tenant's own time zone: a day there
-- has 23, 24 or 25 hours. A `total` window begins with its budget.
--
-- Where clocks go back over midnight a day has two, and AT TIME ZONE names the later one: the last
-- instant of the day before finds the first.
CREATE FUNCTION wicketgate.window_start(kind text, zone text, at timestamptz, since timestamptz)
RETURNS timestamptz LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN kind = 'total' THEN since ELSE (
        SELECT least(midnight AT TIME ZONE zone,
            (midnight - interval '1 microsecond') AT TIME ZONE zone + interval '1 microsecond')
        FROM date_trunc(kind, at AT TIME ZONE zone) AS midnight
    ) END
$$;

-- The first moment after that window; NULL for a window that never ends.
CREATE FUNCTION wicketgate.window_end(kind text, zone text, at timestamptz)
RETURNS timestamptz LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN kind <> 'total' THEN (
        SELECT least(midnight AT TIME ZONE zone,
            (midnight - interval '1 microsecond') AT TIME ZONE zone + interval '1 microsecond')
        FROM CAST(date_trunc(kind, at AT TIME ZONE zone) + ('1 ' || kind)::interval AS timestamp)
            AS midnight
    ) END
$$;

-- What a budget's limit is at *at*: a raise counts until it ends.
CREATE FUNCTION wicketgate.limit_at(base numeric, raised numeric, until timestamptz, at timestamptz)
RETURNS numeric LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN raised IS NOT NULL AND at < until THEN raised ELSE base END
$$;
