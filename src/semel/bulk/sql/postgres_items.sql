-- Every statement about bulk items on PostgreSQL, by name. A holder's write comes after `hold` in its transaction.

-- name: hold
-- Prove that the record is still this holder's, and renew its lease. No row: superseded.
UPDATE semel_record SET lease_until = greatest(lease_until,
    least(coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) + lease_us,
    deadline_at))
WHERE id = :id::bytea AND fence = :fence::bigint AND nonce = :nonce::bytea AND state = 1
RETURNING 1;

-- name: hold_in_unit
-- The same as the last statement of a chunk's transaction: if no record is held it divides by zero, so that the server
-- refuses to commit the rest.
WITH held AS (
    UPDATE semel_record SET lease_until = greatest(lease_until,
        least(coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) + lease_us,
        deadline_at))
    WHERE id = :id::bytea AND fence = :fence::bigint AND nonce = :nonce::bytea AND state = 1
    RETURNING 1
)
SELECT 1 / count(*) FROM held;

-- name: relinquish
-- Give the lease back, so that the next claim continues at once.
UPDATE semel_record SET lease_until =
    coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
WHERE id = :id::bytea AND fence = :fence::bigint AND nonce = :nonce::bytea AND state = 1 AND lease_until >
    coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
RETURNING 1;

-- name: begin_bulk
-- Create the counters of a new bulk.
INSERT INTO semel_bulk (
    operation_id, total, done, succeeded, failed, retryable, unknown, created_at, touched_at
) VALUES (:operation_id::bytea, :total::bigint, 0, 0, 0, 0, 0,
    coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint),
    coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint))
ON CONFLICT DO NOTHING
RETURNING 1;

-- name: standing
-- The bulk's progress, for its holder only. No row: superseded, or never begun.
SELECT
    b.total, b.done, b.succeeded, b.failed, b.retryable, b.unknown,
    coalesce((SELECT max(i.place) + 1 FROM semel_item AS i WHERE i.operation_id = b.operation_id), 0)
FROM semel_record AS r JOIN semel_bulk AS b ON b.operation_id = r.operation_id
WHERE r.id = :id::bytea AND r.fence = :fence::bigint AND r.nonce = :nonce::bytea AND r.state = 1;

-- name: count
-- Write the counters after a chunk; no row if another chunk was first.
UPDATE semel_bulk SET
    done = :done::bigint, succeeded = :succeeded::bigint, failed = :failed::bigint, retryable = :retryable::bigint,
        unknown = :unknown::bigint,
    touched_at = coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
WHERE operation_id = :operation_id::bytea AND done = :was::bigint
RETURNING 1;

-- name: put_item
-- Write an item's outcome, or that it has begun. A known outcome stays.
INSERT INTO semel_item (
    operation_id, place, item_id, state, target_id, result_id, error_code, retryable, detail, settled_at
)
SELECT u.*, coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
FROM unnest(
    :operation_id::bytea[], :place::bigint[], :item_id::text[], :state::smallint[], :target_id::text[],
    :result_id::text[], :error_code::text[], :retryable::smallint[], :detail::bytea[]
) AS u
ON CONFLICT (operation_id, place) DO UPDATE SET
    state = excluded.state, target_id = excluded.target_id, result_id = excluded.result_id,
    error_code = excluded.error_code, retryable = excluded.retryable, detail = excluded.detail,
    settled_at = excluded.settled_at
WHERE semel_item.state = 2 AND semel_item.item_id = excluded.item_id
RETURNING 1;

-- name: begun
-- Items that have begun and have no outcome: their declared effects, when they began, and the store's time.
SELECT place, item_id, detail, settled_at,
    coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) FROM semel_item
WHERE operation_id = :operation_id::bytea AND place >= :first::bigint AND place < :done::bigint AND state = 2
ORDER BY place LIMIT :limit::bigint;

-- name: tally
-- A bulk's progress, for any reader.
SELECT total, done, succeeded, failed, retryable, unknown FROM semel_bulk
WHERE operation_id = :operation_id::bytea;

-- name: newest
-- Bulks, newest first: their ids are in order of time.
SELECT operation_id, total, done, succeeded, failed, retryable, unknown FROM semel_bulk
WHERE operation_id < :before::bytea
ORDER BY operation_id DESC LIMIT :limit::bigint;

-- name: page
-- Items' outcomes in order; of one state (0: of all), and only retryable ones if asked.
SELECT place, item_id, state, target_id, result_id, error_code, retryable, detail FROM semel_item
WHERE operation_id = :operation_id::bytea AND place > :after::bigint
    AND (:state::smallint = 0 OR state = :state::smallint) AND retryable >= :retryable::bigint
ORDER BY place LIMIT :limit::bigint;

-- name: codes
-- The reasons of failed and unknown items with their counts, most frequent first.
SELECT state, error_code, retryable, count(*) FROM semel_item
WHERE operation_id = :operation_id::bytea AND state IN (5, 6)
GROUP BY state, error_code, retryable
ORDER BY count(*) DESC, state, error_code LIMIT :limit::bigint;

-- name: orphans
-- Bulks whose record is forgotten, or now has another operation id.
SELECT b.operation_id FROM semel_bulk AS b
WHERE NOT EXISTS (SELECT 1 FROM semel_record AS r WHERE r.operation_id = b.operation_id)
ORDER BY b.operation_id LIMIT :limit::bigint;

-- name: forget_items
-- Delete a chunk of an orphan's items.
DELETE FROM semel_item WHERE operation_id = :operation_id::bytea AND place < (
    SELECT min(place) + :limit::bigint FROM semel_item WHERE operation_id = :operation_id::bytea
)
RETURNING 1;

-- name: forget_bulk
-- Delete an orphan without items.
DELETE FROM semel_bulk WHERE operation_id = :operation_id::bytea
RETURNING 1;
