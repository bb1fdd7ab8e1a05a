-- The steps of an execution on PostgreSQL. One statement each; every write names fence and nonce.

-- name: read_steps (planned once)
-- Read the holder's list. No row for any other process.
SELECT steps, NULL::text
FROM semel_record
WHERE id = :id::bytea AND fence = :fence::bigint AND nonce = :nonce::bytea AND state IN (1, 2, 6) AND lease_until > 0;

-- name: read_steps_within
-- The same as the first statement of a unit, with the transaction that its last one must still be in.
SELECT steps, pg_current_xact_id()::text
FROM semel_record
WHERE id = :id::bytea AND fence = :fence::bigint AND nonce = :nonce::bytea AND state IN (1, 2, 6) AND lease_until > 0;

-- name: write_steps (planned once)
-- Write the whole list, with the state and doubt that follow from it. A record that is UNKNOWN under this fence and
-- nonce has lapsed: its holder continues.
UPDATE semel_record SET steps = :steps::bytea, state = :state::smallint, doubt = :doubt::text
WHERE id = :id::bytea AND fence = :fence::bigint AND nonce = :nonce::bytea AND state IN (1, 2, 6) AND lease_until > 0
RETURNING 1;

-- name: write_steps_within
-- The same as the last statement of a unit, in the transaction that the unit began with. If it writes nothing it
-- divides by zero, so that the server refuses to commit the rest.
WITH written AS (
    UPDATE semel_record SET steps = :steps::bytea, state = :state::smallint, doubt = :doubt::text
    WHERE id = :id::bytea AND fence = :fence::bigint AND nonce = :nonce::bytea AND state IN (1, 2, 6)
        AND lease_until > 0 AND pg_current_xact_id()::text = :transaction::text
    RETURNING 1
)
SELECT 1 / count(*) FROM written;

-- name: list_steps (planned once)
-- Read the list for a claim by a process that declares no steps. Takes no lock: the grant compares the list again.
SELECT steps FROM semel_record WHERE id = :id::bytea;

-- name: lock_steps (planned once)
-- Read the list for the settlement of the record, and lock it: the settlement writes the list that it has read.
SELECT steps FROM semel_record WHERE id = :id::bytea
FOR UPDATE;

-- name: rewrite_steps (planned once)
-- Write the list after its record has been settled under this fence.
UPDATE semel_record SET steps = :steps::bytea WHERE id = :id::bytea AND fence = :fence::bigint
RETURNING 1;

-- name: note_open (planned once)
-- List a resumable execution where completers look, without an index that every settlement would update.
INSERT INTO semel_attention (id) VALUES (:id::bytea) ON CONFLICT (id) DO NOTHING RETURNING 1;

-- name: keep_request (planned once)
-- Keep the request for a run without the client; the settlement drops it.
UPDATE semel_record SET request = :request::bytea
WHERE id = :id::bytea AND fence = :fence::bigint AND nonce = :nonce::bytea AND state IN (1, 2)
RETURNING 1;

-- name: find_abandoned
-- A page of the resumable executions without a holder that may continue.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
SELECT r.id, r.operation, r.attempt, r.attempts_max, r.lease_until
FROM clock, semel_attention AS a CROSS JOIN LATERAL (
    SELECT id, operation, state, attempt, attempts_max, lease_until, request IS NOT NULL AS has_request
    FROM semel_record WHERE semel_record.id = a.id OFFSET 0
) AS r
WHERE r.state = 1 AND r.lease_until <= clock.now AND r.has_request
    AND (r.lease_until, r.id) > (:after::bigint, :after_id::bytea)
ORDER BY r.lease_until, r.id
LIMIT :limit::bigint;
