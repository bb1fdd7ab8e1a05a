-- The statements of the PostgreSQL store outside a command's life: lists, the reaper's walk, purges, the schema.
-- The rules of records.sql hold here too.

-- name: read_operations
-- The whole records of these operation ids.
SELECT
    id, format, tenant, caller, operation, key_hash, recipe, fingerprint, state, effects, fence, nonce, holder,
    attempt, lapses, generation, operation_id, created_at, first_started_at, lease_until, deadline_at, dedup_until,
    lease_us, attempts_max, answer_us, tombstone_us, after_expiry, settled_at, answer_until, forget_after, doubt,
    business_ref, resource_type, resource_id, error_code, answer_kind, answer_digest, sealing_key_id, status, headers,
    request, body
FROM semel_record
WHERE operation_id = ANY(:operation_ids::bytea[])
ORDER BY seq;

-- name: find
-- A page for operators, newest first, without headers and bodies; seq is the page's cursor. One row of NULLs: none.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
SELECT
    clock.now, r.seq, r.id, r.format, r.tenant, r.caller, r.operation, r.key_hash, r.recipe, r.fingerprint, r.state,
    r.effects, r.fence, r.nonce, r.holder, r.attempt, r.lapses, r.generation, r.operation_id, r.created_at,
    r.first_started_at, r.lease_until, r.deadline_at, r.dedup_until, r.lease_us, r.attempts_max, r.answer_us,
    r.tombstone_us, r.after_expiry, r.settled_at, r.answer_until, r.forget_after, r.doubt, r.business_ref,
    r.resource_type, r.resource_id, r.error_code, r.answer_kind, r.answer_digest, r.sealing_key_id, r.status
FROM clock LEFT JOIN (
    SELECT r.* FROM semel_record AS r
    WHERE r.seq > :after::bigint AND (:before::bigint IS NULL OR r.seq < :before::bigint)
        AND (:states::smallint[] IS NULL OR r.state = ANY(:states::smallint[]))
        AND (:tenant::text IS NULL OR r.tenant = :tenant::text)
        AND (:caller::text IS NULL OR r.caller = :caller::text)
        AND (:operation::text IS NULL OR r.operation = :operation::text)
        AND (NOT :lapsed::boolean OR (r.state IN (1, 2) AND r.lease_until <= (SELECT now FROM clock)))
    ORDER BY r.seq DESC
    LIMIT :limit::bigint
) AS r ON true
ORDER BY r.seq DESC;

-- name: count_listed
-- Count the records that need attention, up to a limit.
SELECT count(*) FROM (SELECT FROM semel_attention LIMIT :look::bigint) AS listed;

-- name: read_newest
-- The cursor of the newest record.
SELECT coalesce(max(seq), 0) FROM semel_record;

-- name: find_unknown
-- The same over UNKNOWN records only, by the table of those that need attention. OFFSET 0 keeps the planner from walking
-- along all records until it has met enough of them.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
SELECT
    clock.now, r.seq, r.id, r.format, r.tenant, r.caller, r.operation, r.key_hash, r.recipe, r.fingerprint, r.state,
    r.effects, r.fence, r.nonce, r.holder, r.attempt, r.lapses, r.generation, r.operation_id, r.created_at,
    r.first_started_at, r.lease_until, r.deadline_at, r.dedup_until, r.lease_us, r.attempts_max, r.answer_us,
    r.tombstone_us, r.after_expiry, r.settled_at, r.answer_until, r.forget_after, r.doubt, r.business_ref,
    r.resource_type, r.resource_id, r.error_code, r.answer_kind, r.answer_digest, r.sealing_key_id, r.status
FROM clock LEFT JOIN (
    SELECT r.* FROM semel_attention AS a
        CROSS JOIN LATERAL (SELECT * FROM semel_record WHERE semel_record.id = a.id OFFSET 0) AS r
    WHERE (:before::bigint IS NULL OR r.seq < :before::bigint)
        AND (:states::smallint[] IS NULL OR r.state = ANY(:states::smallint[]))
        AND (:tenant::text IS NULL OR r.tenant = :tenant::text)
        AND (:caller::text IS NULL OR r.caller = :caller::text)
        AND (:operation::text IS NULL OR r.operation = :operation::text)
        AND (NOT :lapsed::boolean OR (r.state IN (1, 2) AND r.lease_until <= (SELECT now FROM clock)))
    ORDER BY r.seq DESC
    LIMIT :limit::bigint
) AS r ON true
ORDER BY r.seq DESC;

-- name: find_needing
-- The same for some entries of that table: UNKNOWN and open ones, equally many of each if they do not all fit.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
SELECT
    clock.now, r.seq, r.id, r.format, r.tenant, r.caller, r.operation, r.key_hash, r.recipe, r.fingerprint, r.state,
    r.effects, r.fence, r.nonce, r.holder, r.attempt, r.lapses, r.generation, r.operation_id, r.created_at,
    r.first_started_at, r.lease_until, r.deadline_at, r.dedup_until, r.lease_us, r.attempts_max, r.answer_us,
    r.tombstone_us, r.after_expiry, r.settled_at, r.answer_until, r.forget_after, r.doubt, r.business_ref,
    r.resource_type, r.resource_id, r.error_code, r.answer_kind, r.answer_digest, r.sealing_key_id, r.status
FROM clock LEFT JOIN (
    SELECT r.* FROM (
        SELECT needing.seq FROM (
            SELECT r.seq, row_number() OVER (PARTITION BY r.state = 6 ORDER BY r.seq DESC) AS place
            FROM (SELECT id FROM semel_attention LIMIT :look::bigint) AS a
            CROSS JOIN LATERAL (
                SELECT seq, state, lease_until FROM semel_record WHERE semel_record.id = a.id OFFSET 0
            ) AS r
            WHERE r.state = ANY(:states::smallint[])
                AND (NOT :lapsed::boolean OR (r.state IN (1, 2) AND r.lease_until <= (SELECT now FROM clock)))
        ) AS needing
        ORDER BY needing.place LIMIT :limit::bigint
    ) AS page CROSS JOIN LATERAL (SELECT * FROM semel_record WHERE semel_record.seq = page.seq OFFSET 0) AS r
) AS r ON true
ORDER BY r.seq DESC;

-- name: scan_open
-- One page of the reaper's walk over newer records: those still open, and where the page ended. A record
-- may become visible after a younger one, so the walk stays :lag behind the clock.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
),
page AS MATERIALIZED (
    SELECT seq, id, state, created_at FROM semel_record WHERE seq > :after::bigint ORDER BY seq LIMIT :page::bigint
)
SELECT page.seq, CASE WHEN page.state IN (1, 2) THEN page.id END, page.created_at + :lag::bigint < clock.now
FROM page, clock
WHERE page.state IN (1, 2) OR page.seq = (SELECT max(seq) FROM page)
ORDER BY page.seq;

-- name: turn
-- Take a worker's next turn, and return what the records need.
-- include: semel.stores.postgres sql/turn.sql
turn AS (
    SELECT clock.now, coalesce((SELECT last FROM taken), :mine::bigint) AS next FROM clock
)
SELECT turn.now, turn.next, records.found FROM turn, records;

-- name: has_turns
-- Whether the workers of this schema may take turns.
SELECT count(*) FROM pg_class WHERE oid = to_regclass('semel_turn');

-- name: has_waiting_messages
-- Whether the messages that were tried and not handled have their index, whole.
SELECT count(*) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
WHERE indrelid = to_regclass('semel_inbox') AND relname = 'semel_inbox_open' AND indisvalid;

-- name: find_lapsed
-- The lapsed ones of these records, and of those that need attention, with an unknown outcome: the reaper's work.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
),
seen AS (
    SELECT unnest(:ids::bytea[]) AS id UNION SELECT id FROM semel_attention
)
SELECT clock.now, r.id
FROM clock, seen CROSS JOIN LATERAL (
    SELECT id, state, effects, lapses, lease_until, attempts_max, dedup_until
    FROM semel_record WHERE semel_record.id = seen.id OFFSET 0
) AS r
WHERE r.state = 2 AND r.lease_until <= clock.now
    AND (r.effects <> 2 OR r.dedup_until <= clock.now OR r.lapses + (r.lease_until > 0)::int >= r.attempts_max)
ORDER BY r.lease_until
LIMIT :limit::bigint;

-- name: keep_horizon
-- Remember how far the walk has come, and the old open records behind it; drop entries that no longer need attention.
WITH kept AS (
    INSERT INTO semel_attention (id) SELECT unnest(:ids::bytea[]) ON CONFLICT (id) DO NOTHING
),
cleared AS (
    DELETE FROM semel_attention AS a
    WHERE NOT EXISTS (SELECT FROM semel_record AS r WHERE r.id = a.id AND r.state IN (1, 2, 6))
)
UPDATE semel_meta SET horizon = greatest(horizon, :horizon::bigint);

-- name: read_horizon
-- Where a reaper that has just started begins its walk.
SELECT horizon FROM semel_meta;

-- name: purge
-- One chunk of the purge's walk in order of creation. Rows that are being written are left to the next walk; open and
-- unknown records never expire and are never selected.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
),
page AS MATERIALIZED (
    SELECT seq, id, answer_until, forget_after, answer_kind
    FROM semel_record WHERE seq > :after::bigint ORDER BY seq LIMIT :chunk::bigint
),
over AS MATERIALIZED (
    SELECT r.id, r.forget_after + :grace::bigint <= clock.now AS forget
    FROM clock, page JOIN semel_record AS r ON r.id = page.id
    WHERE r.forget_after + :grace::bigint <= clock.now
        OR (r.answer_until + :grace::bigint <= clock.now AND r.answer_kind IN (1, 3))
    FOR UPDATE OF r SKIP LOCKED
),
forgotten AS (
    DELETE FROM semel_record AS r USING over WHERE r.id = over.id AND over.forget RETURNING 1
),
dropped AS (
    UPDATE semel_record AS r SET answer_kind = 2, headers = NULL, body = NULL
    FROM over WHERE r.id = over.id AND NOT over.forget RETURNING 1
)
SELECT
    (SELECT count(*) FROM page), (SELECT count(*) FROM dropped), (SELECT count(*) FROM forgotten),
    (SELECT max(seq) FROM page);

-- name: count_states
-- How many of one page of records are in each state, and where the page ended. All records in one statement would take
-- longer than a call may, once there are some millions.
WITH page AS MATERIALIZED (
    SELECT seq, state FROM semel_record WHERE seq > :after::bigint ORDER BY seq LIMIT :page::bigint
)
SELECT state, count(*), max(seq) FROM page GROUP BY state ORDER BY state;

-- name: read_audit
-- The newest lines of the audit trail, of one record or of all.
SELECT at, record_id, actor, action, reason, fence
FROM semel_audit
WHERE :record_id::bytea IS NULL OR record_id = :record_id::bytea
ORDER BY seq DESC
LIMIT :limit::bigint;

-- name: read_now
SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint);

-- name: has_meta
-- Whether this schema was ever migrated.
SELECT count(*) FROM pg_class WHERE oid = to_regclass('semel_meta');

-- name: read_meta
-- This store's identity.
SELECT store_id, schema_version, epoch, id_format, secret_check FROM semel_meta;

-- name: first_meta
-- The first migration writes it once.
INSERT INTO semel_meta (one, store_id, schema_version, epoch, id_format, secret_check, horizon)
VALUES (1, :store_id::text, :schema_version::integer, 1, 1, :secret_check::bytea, 0)
ON CONFLICT (one) DO NOTHING;

-- name: write_schema_version
-- Each later migration raises it.
UPDATE semel_meta SET schema_version = :schema_version::integer WHERE schema_version < :schema_version::integer;

-- name: lock_schema
-- Keep migrations apart, until the transaction's end.
SELECT pg_advisory_xact_lock(:lock::bigint) IS NULL;
