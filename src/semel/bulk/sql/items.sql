-- Statements about bulk items by name, that SQLite and MariaDB share. A holder's write comes after `hold` in its
-- transaction.

-- name: relinquish
-- Give the lease back, so that the next claim continues at once.
UPDATE semel_record SET lease_until = :now
WHERE id = :id AND fence = :fence AND nonce = :nonce AND state = 1 AND lease_until > :now;

-- name: standing
-- The bulk's progress, for its holder only. No row: superseded, or never begun.
SELECT
    b.total, b.done, b.succeeded, b.failed, b.retryable, b.unknown,
    coalesce((SELECT max(i.place) + 1 FROM semel_item AS i WHERE i.operation_id = b.operation_id), 0)
FROM semel_record AS r JOIN semel_bulk AS b ON b.operation_id = r.operation_id
WHERE r.id = :id AND r.fence = :fence AND r.nonce = :nonce AND r.state = 1;

-- name: count
-- Write the counters after a chunk; no row if another chunk was first.
UPDATE semel_bulk SET
    done = :done, succeeded = :succeeded, failed = :failed, retryable = :retryable, unknown = :unknown,
    touched_at = :now
WHERE operation_id = :operation_id AND done = :was;

-- name: begun
-- Items that have begun and have no outcome: their declared effects, when they began, and the store's time.
SELECT place, item_id, detail, settled_at, :now FROM semel_item
WHERE operation_id = :operation_id AND place >= :first AND place < :done AND state = 2
ORDER BY place LIMIT :limit;

-- name: tally
-- A bulk's progress, for any reader.
SELECT total, done, succeeded, failed, retryable, unknown FROM semel_bulk
WHERE operation_id = :operation_id;

-- name: newest
-- Bulks, newest first: their ids are in order of time.
SELECT operation_id, total, done, succeeded, failed, retryable, unknown FROM semel_bulk
WHERE operation_id < :before
ORDER BY operation_id DESC LIMIT :limit;

-- name: page
-- Items' outcomes in order; of one state (0: of all), and only retryable ones if asked.
SELECT place, item_id, state, target_id, result_id, error_code, retryable, detail FROM semel_item
WHERE operation_id = :operation_id AND place > :after
    AND (:state = 0 OR state = :state) AND retryable >= :retryable
ORDER BY place LIMIT :limit;

-- name: codes
-- The reasons of failed and unknown items with their counts, most frequent first.
SELECT state, error_code, retryable, count(*) FROM semel_item
WHERE operation_id = :operation_id AND state IN (5, 6)
GROUP BY state, error_code, retryable
ORDER BY count(*) DESC, state, error_code LIMIT :limit;

-- name: orphans
-- Bulks whose record is forgotten, or now has another operation id.
SELECT b.operation_id FROM semel_bulk AS b
WHERE NOT EXISTS (SELECT 1 FROM semel_record AS r WHERE r.operation_id = b.operation_id)
ORDER BY b.operation_id LIMIT :limit;

-- name: forget_bulk
-- Delete an orphan without items.
DELETE FROM semel_bulk WHERE operation_id = :operation_id;
