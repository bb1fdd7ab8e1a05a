-- Quotas of new keys: the statements that count them. semel/quota.py has the rule and the form of a row.

-- name: taken
-- Take places for the new records in "asked", in one write per caller. Callers come in one order, so that two batches
-- never deadlock, and a caller's row is locked until this statement's commit. If there is no room, the row does not
-- change. A listed record outside this statement's snapshot may be about to commit: it counts for a minute.
demand AS (
    SELECT
        quota, count(*) AS wanted, min(new_keys) AS new_keys, min(slice_us) AS slice_us, min(open_max) AS open_max,
        min(unknown_max) AS unknown_max, array_agg(id ORDER BY id) AS ids
    FROM asked WHERE quota IS NOT NULL GROUP BY quota
),
taken AS (
    INSERT INTO semel_quota AS q (
        id, slice, slice_us, counts, ids, since, asked_at, wanted, new_keys, open_max, unknown_max, granted, opens,
        unknowns
    )
    SELECT
        d.quota, clock.now / d.slice_us, d.slice_us,
        array_fill(0::bigint, ARRAY[20]) || greatest(0, least(d.wanted, d.new_keys, d.open_max)),
        CASE WHEN d.open_max IS NULL AND d.unknown_max IS NULL THEN '{}' ELSE d.ids END,
        CASE WHEN d.open_max IS NULL AND d.unknown_max IS NULL THEN '{}'
            ELSE array_fill(clock.now, ARRAY[d.wanted::integer]) END,
        clock.now, d.wanted, d.new_keys, d.open_max, d.unknown_max, least(d.wanted, d.new_keys, d.open_max), 0, 0
    FROM clock, demand AS d
    ORDER BY d.quota
    ON CONFLICT (id) DO UPDATE SET (
        slice, slice_us, counts, ids, since, asked_at, wanted, new_keys, open_max, unknown_max, granted, opens, unknowns
    ) = (
        SELECT
            CASE WHEN g.granted = 0 THEN q.slice ELSE m.slice END,
            CASE WHEN g.granted = 0 THEN q.slice_us ELSE excluded.slice_us END,
            CASE WHEN g.granted = 0 THEN q.counts ELSE m.counts[1:20] || (m.counts[21] + g.granted) END,
            CASE WHEN l.limited THEN l.ids || excluded.ids[1 : g.granted] ELSE '{}' END,
            CASE WHEN l.limited THEN l.since || excluded.since[1 : g.granted] ELSE '{}' END,
            excluded.asked_at, excluded.wanted, excluded.new_keys, excluded.open_max, excluded.unknown_max, g.granted,
            l.opens, l.unknowns
        FROM (
            SELECT
                CASE WHEN anew.so THEN excluded.slice ELSE greatest(q.slice, excluded.slice) END AS slice,
                q.counts[1 + over.slices:21] || array_fill(0::bigint, ARRAY[over.slices]) AS counts
            FROM (SELECT q.slice_us <> excluded.slice_us OR q.slice > excluded.slice + 21 AS so) AS anew,
                LATERAL (
                    SELECT CASE WHEN anew.so THEN 0 ELSE least(21, greatest(0, excluded.slice - q.slice)) END::integer
                        AS slices
                ) AS over
        ) AS m,
        LATERAL (
            SELECT
                look.limited,
                coalesce(array_agg(seen.id) FILTER (WHERE seen.id IS NOT NULL), '{}') AS ids,
                coalesce(array_agg(seen.since) FILTER (WHERE seen.id IS NOT NULL), '{}') AS since,
                (count(seen.id) - count(*) FILTER (WHERE seen.state = 6))::integer AS opens,
                (count(*) FILTER (WHERE seen.state = 6))::integer AS unknowns
            FROM (
                SELECT
                    excluded.open_max IS NOT NULL OR excluded.unknown_max IS NOT NULL AS limited,
                    cardinality(q.ids) + excluded.wanted > least(excluded.open_max, excluded.unknown_max) AS really
            ) AS look
            LEFT JOIN LATERAL (
                SELECT listed.id, listed.since, listed.state
                FROM (
                    SELECT
                        u.id, u.since,
                        CASE WHEN look.really THEN (SELECT r.state FROM semel_record AS r WHERE r.id = u.id) END
                            AS state
                    FROM unnest(q.ids, q.since) AS u (id, since)
                ) AS listed
                WHERE NOT look.really OR listed.state IN (1, 2, 6)
                    OR (listed.state IS NULL AND listed.since > excluded.asked_at - 60000000)
            ) AS seen ON look.limited
            GROUP BY look.limited
        ) AS l,
        LATERAL (
            SELECT greatest(0, least(
                excluded.wanted, excluded.new_keys - (SELECT sum(c) FROM unnest(m.counts) AS c),
                excluded.open_max - l.opens,
                CASE WHEN l.unknowns >= excluded.unknown_max THEN 0 END
            ))::integer AS granted
        ) AS g
    )
    RETURNING q.id, q.slice, q.counts, q.opens, q.unknowns, q.granted
)

-- name: claim_counted (planned once)
-- As "claim", for a batch in which quotas count new keys: it writes only those that got a place. An id without one
-- comes back with its caller's usage. stores/postgres/rows.py inserts the text of "taken" here; all places are taken
-- before the first record is written.
WITH clock AS MATERIALIZED (
    SELECT CASE WHEN :store::text IS NULL OR :store::text = (SELECT store_id FROM semel_meta WHERE one = 1) THEN
        coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) END AS now
),
known AS MATERIALIZED (
    SELECT
        id, format, tenant, caller, operation, key_hash, recipe, fingerprint, state, effects, fence, nonce, holder,
        attempt, lapses, generation, operation_id, created_at, first_started_at, lease_until, deadline_at,
        dedup_until, lease_us, attempts_max, answer_us, tombstone_us, after_expiry, settled_at, answer_until,
        forget_after, doubt, business_ref, resource_type, resource_id, error_code, answer_kind, answer_digest,
        sealing_key_id, status, headers, request, body
    FROM semel_record
    WHERE id = ANY(:id::bytea[])
),
asked AS MATERIALIZED (
    SELECT w.*, row_number() OVER (PARTITION BY w.quota ORDER BY w.id) AS place
    FROM unnest(
        :id::bytea[], :tenant::text[], :caller::text[], :operation::text[], :key_hash::bytea[], :recipe::text[],
        :fingerprint::bytea[], :state::smallint[], :effects::smallint[], :nonce::bytea[], :holder::text[],
        :operation_id::bytea[], :lease_us::bigint[], :deadline_us::bigint[], :dedup_us::bigint[],
        :attempts_max::integer[], :answer_us::bigint[], :tombstone_us::bigint[], :after_expiry::smallint[],
        :lock::bigint[],
        :quota::bytea[], :new_keys::bigint[], :slice_us::bigint[], :open_max::bigint[], :unknown_max::bigint[]
    ) AS w (
        id, tenant, caller, operation, key_hash, recipe, fingerprint, state, effects, nonce, holder, operation_id,
        lease_us, deadline_us, dedup_us, attempts_max, answer_us, tombstone_us, after_expiry, lock,
        quota, new_keys, slice_us, open_max, unknown_max
    )
    WHERE EXISTS (SELECT FROM clock WHERE now IS NOT NULL) AND NOT EXISTS (SELECT FROM known WHERE known.id = w.id)
        AND pg_try_advisory_xact_lock_shared(w.lock # ('semel_record'::regclass::oid::bigint << 32))
),
TAKEN,
won AS (
    INSERT INTO semel_record (
        id, format, tenant, caller, operation, key_hash, recipe, fingerprint, state, effects, fence, nonce, holder,
        attempt, lapses, generation, operation_id, created_at, first_started_at, lease_until, deadline_at,
        dedup_until, lease_us, attempts_max, answer_us, tombstone_us, after_expiry, answer_kind
    )
    SELECT
        w.id, 1, w.tenant, w.caller, w.operation, w.key_hash, w.recipe, w.fingerprint, w.state, w.effects, clock.now,
        w.nonce, w.holder, 1, 0, 0, w.operation_id, clock.now, clock.now, clock.now + least(w.lease_us,
        w.deadline_us), clock.now + w.deadline_us, clock.now + w.dedup_us, w.lease_us, w.attempts_max, w.answer_us,
        w.tombstone_us, w.after_expiry, 0
    FROM clock CROSS JOIN (SELECT count(*) FROM taken) AS all_taken CROSS JOIN asked AS w
        LEFT JOIN taken AS t ON t.id = w.quota
    WHERE w.quota IS NULL OR w.place <= t.granted
    ORDER BY w.id
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
SELECT
    clock.now, won.id, NULL::smallint, NULL::text, NULL::text, NULL::text, NULL::bytea, NULL::text, NULL::bytea,
    NULL::smallint, NULL::smallint, NULL::bigint, NULL::bytea, NULL::text, NULL::integer, NULL::integer,
    NULL::integer, NULL::bytea, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
    NULL::integer, NULL::bigint, NULL::bigint, NULL::smallint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::text,
    NULL::text, NULL::text, NULL::text, NULL::text, NULL::smallint, NULL::bytea, NULL::text, NULL::integer,
    NULL::bytea, NULL::bytea, NULL::bytea
FROM clock LEFT JOIN won ON true
WHERE clock.now IS NULL OR won.id IS NOT NULL
UNION ALL
SELECT
    clock.now, w.id, NULL::smallint, array_to_string(t.counts, ','), NULL::text, NULL::text, NULL::bytea, NULL::text,
    NULL::bytea,
    NULL::smallint, NULL::smallint, t.slice, NULL::bytea, NULL::text, t.opens, t.unknowns,
    NULL::integer, NULL::bytea, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
    NULL::integer, NULL::bigint, NULL::bigint, NULL::smallint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::text,
    NULL::text, NULL::text, NULL::text, NULL::text, NULL::smallint, NULL::bytea, NULL::text, NULL::integer,
    NULL::bytea, NULL::bytea, NULL::bytea
FROM clock, asked AS w JOIN taken AS t ON t.id = w.quota
WHERE w.place > t.granted
UNION ALL
SELECT
    clock.now, known.id, known.format, known.tenant, known.caller, known.operation, known.key_hash, known.recipe,
    known.fingerprint, known.state, known.effects, known.fence, known.nonce, known.holder, known.attempt,
    known.lapses, known.generation, known.operation_id, known.created_at, known.first_started_at, known.lease_until,
    known.deadline_at, known.dedup_until, known.lease_us, known.attempts_max, known.answer_us, known.tombstone_us,
    known.after_expiry, known.settled_at, known.answer_until, known.forget_after, known.doubt, known.business_ref,
    known.resource_type, known.resource_id, known.error_code, known.answer_kind, known.answer_digest,
    known.sealing_key_id, known.status, known.headers, known.request, known.body
FROM known, clock
WHERE clock.now IS NOT NULL;

-- name: take_place (planned once)
-- Take a place for an ATOMIC command's record before its transaction begins, which would otherwise lock the caller's
-- row until its end. Takes none if the record exists, or another unit is about to write it.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
),
asked AS MATERIALIZED (
    SELECT
        :id::bytea AS id, :quota::bytea AS quota, :new_keys::bigint AS new_keys, :slice_us::bigint AS slice_us,
        :open_max::bigint AS open_max, :unknown_max::bigint AS unknown_max
    WHERE NOT EXISTS (SELECT FROM semel_record AS r WHERE r.id = :id::bytea)
        AND pg_try_advisory_xact_lock_shared(:lock::bigint # ('semel_record'::regclass::oid::bigint << 32))
),
TAKEN
SELECT clock.now, array_to_string(taken.counts, ','), taken.slice, taken.opens, taken.unknowns
FROM taken, clock WHERE taken.granted = 0;

-- name: forget_quotas
-- Forget callers of whom nothing counts any more. A row that is being written is left to the next walk.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
),
over AS (
    SELECT q.id FROM semel_quota AS q, clock
    WHERE (q.slice + 21) * q.slice_us <= clock.now
        AND NOT EXISTS (
            SELECT FROM unnest(q.ids, q.since) AS u (id, since)
            WHERE u.since > clock.now - 60000000
                OR EXISTS (SELECT FROM semel_record AS r WHERE r.id = u.id AND r.state IN (1, 2, 6))
        )
    LIMIT :limit::bigint
    FOR UPDATE OF q SKIP LOCKED
),
gone AS (
    DELETE FROM semel_quota AS q USING over WHERE q.id = over.id RETURNING 1
)
SELECT count(*) FROM gone;

-- name: has_quotas
-- Whether new keys may be counted in this schema.
SELECT count(*) FROM pg_class WHERE oid = to_regclass('semel_quota');
