-- The steps of an execution on MariaDB. Every write names fence and nonce.
-- What SQLite and MariaDB share is in steps.sql.

-- name: lock_steps
-- Read the list for the settlement of the record, and lock it: the settlement writes the list that it has read.
SELECT steps FROM semel_record WHERE id = :id
FOR UPDATE;

-- name: note_open
-- List a resumable execution where completers look, without an index that every settlement would update.
INSERT IGNORE INTO semel_attention (id) VALUES (:id);

-- name: find_abandoned
-- A page of the resumable executions without a holder that may continue.
SELECT r.id, r.operation, r.attempt, r.attempts_max, r.lease_until
FROM semel_attention AS a STRAIGHT_JOIN semel_record AS r ON r.id = a.id
WHERE r.state = 1 AND r.lease_until <= :now AND r.request IS NOT NULL
    AND (r.lease_until, r.id) > (:after, :after_id)
ORDER BY r.lease_until, r.id
LIMIT :limit;
