-- Statements about bulk items by name, that SQLite and MariaDB share. A holder's write comes after `hold` in its
-- transaction.

-- name: relinquish
-- Give the lease back: the next claim goes on at once.
UPDATE semel_record SET lease_until = :now
WHERE id = :id AND fence = :fence AND nonce = :nonce AND state = 1 AND lease_until > :now;

-- name: standing
-- How far the bulk is, for its holder alone. No row: superseded, or never begun.
SELECT
    b.total, b.done, b.succeeded, b.failed, b.retryable, b.unknown,
    coalesce((SELECT max(i.place) + 1 FROM semel_item AS i WHERE i.operation_id = b.operation_id), 0)
FROM semel_record AS r JOIN semel_bulk AS b ON b.operation_id = r.operation_id
WHERE r.id = :id AND r.fence = :fence AND r.nonce = :nonce AND r.state = 1;

-- name: count
-- The counters after a chunk; no row where another chunk was first.
UPDATE semel_bulk SET
    done = :done, succeeded = :succeeded, failed = :failed, retryable = :retryable, unknown = :unknown,
    touched_at = :now
WHERE operation_id = :operation_id AND done = :was;

-- name: begun
-- Items that were begun and have no outcome: under which effects, the time of their start, and the store's.
SELECT place, item_id, detail, settled_at, :now FROM semel_item
WHERE operation_id = :operation_id AND place >= :first AND place < :done AND state = 2
ORDER BY place LIMIT :limit;

-- name: tally
-- How far a bulk is, for everybody.
SELECT total, done, succeeded, failed, retryable, unknown FROM semel_bulk
WHERE operation_id = :operation_id;

-- name: newest
-- Bulks, the newest first: their names are made in the order of time.
SELECT operation_id, total, done, succeeded, failed, retryable, unknown FROM semel_bulk
WHERE operation_id < :before
ORDER BY operation_id DESC LIMIT :limit;

-- name: page
-- Items' outcomes in their order; of one state (0: of all), and those alone that may be tried again where asked.
SELECT place, item_id, state, target_id, result_id, error_code, retryable, detail FROM semel_item
WHERE operation_id = :operation_id AND place > :after
    AND (:state = 0 OR state = :state) AND retryable >= :retryable
ORDER BY place LIMIT :limit;

-- name: codes
-- Why items failed or are unknown, and how many of each: the most frequent first.
SELECT state, error_code, retryable, count(*) FROM semel_item
WHERE operation_id = :operation_id AND state IN (5, 6)
GROUP BY state, error_code, retryable
ORDER BY count(*) DESC, state, error_code LIMIT :limit;

-- name: orphans
-- Bulks whose record is forgotten, or has begun anew under another operation id.
SELECT b.operation_id FROM semel_bulk AS b
WHERE NOT EXISTS (SELECT 1 FROM semel_record AS r WHERE r.operation_id = b.operation_id)
ORDER BY b.operation_id LIMIT :limit;

-- name: forget_bulk
-- An orphan without items.
DELETE FROM semel_bulk WHERE operation_id = :operation_id;
