-- The steps of an execution on SQLite. Every write names fence and nonce.
-- What SQLite and MariaDB share is in steps.sql.

-- name: lock_steps
-- Read the list for the settlement of the record, which holds the write lock already.
SELECT steps FROM semel_record WHERE id = :id;

-- name: find_abandoned
-- A page of the resumable executions without a holder that may continue, by the small index of open records.
SELECT id, operation, attempt, attempts_max, lease_until
FROM semel_record
WHERE state IN (1, 2, 6) AND state = 1 AND lease_until <= :now AND request IS NOT NULL
    AND (lease_until, id) > (:after, :after_id)
ORDER BY lease_until, id
LIMIT :limit;
