-- How a worker takes its next turn (workers/rules.py, next_turn), and what it sees of the records: the beginning of each
-- statement `turn`. It reads one page of the records created since, so that an idle fleet sends one statement per turn.
-- It looks up each record by its id: just after a load the planner expects few records and would walk all of them for a
-- plain join. Columns of `records`: when the first open one will lapse, since when the first one has waited for a
-- completer, whether one is UNKNOWN, and how long the page is.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
),
taken AS (
    INSERT INTO semel_turn AS t (kind, last, looked)
    SELECT :kind::text, now + :every::bigint, now FROM clock
    WHERE (:mine::bigint > now AND :mine::bigint < now + 100 * :every::bigint) IS NOT TRUE
    ON CONFLICT (kind) DO UPDATE SET
        last = CASE
            WHEN t.last < excluded.looked OR t.looked > excluded.looked
                OR 2 * (excluded.looked - t.looked) > 3 * :every::bigint
            THEN excluded.last
            ELSE least(t.last, excluded.looked + 60 * :every::bigint) + :every::bigint
        END,
        looked = excluded.looked
    RETURNING last
),
page AS MATERIALIZED (
    SELECT id, state FROM semel_record WHERE seq > :after::bigint ORDER BY seq LIMIT :page::bigint
),
seen AS (
    SELECT unnest(:ids::bytea[]) AS id
    UNION SELECT id FROM semel_attention WHERE :page::bigint > 0
    UNION SELECT id FROM page WHERE state IN (1, 2)
),
records AS MATERIALIZED (
    SELECT json_build_array(
        min(
            CASE
                WHEN r.effects = 2 AND r.lapses + (r.lease_until > 0)::int < r.attempts_max
                THEN greatest(r.lease_until, r.dedup_until)
                ELSE r.lease_until
            END
        ) FILTER (WHERE r.state = 2 OR (r.state = 1 AND r.lease_until > clock.now)),
        min(r.lease_until) FILTER (WHERE r.state = 1 AND r.lease_until <= clock.now AND r.has_request),
        coalesce(bool_or(r.state = 6), false),
        (SELECT count(*) FROM page)
    )::text AS found
    FROM clock, seen CROSS JOIN LATERAL (
        SELECT state, effects, lapses, lease_until, attempts_max, dedup_until, request IS NOT NULL AS has_request
        FROM semel_record WHERE semel_record.id = seen.id OFFSET 0
    ) AS r
),
