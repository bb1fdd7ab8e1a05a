-- The steps of an execution on MariaDB. Every write names fence and nonce.

-- name: read_steps
-- What the holder has recorded. No row for anybody else.
SELECT steps, NULL
FROM semel_record
WHERE id = :id AND fence = :fence AND nonce = :nonce AND state IN (1, 2, 6) AND lease_until > 0;

-- name: write_steps
-- The whole list, with the state and the doubt that it leaves. A record that reads UNKNOWN under this fence and nonce
-- does so by its lapse: its holder goes on.
UPDATE semel_record SET steps = :steps, state = :state, doubt = :doubt
WHERE id = :id AND fence = :fence AND nonce = :nonce AND state IN (1, 2, 6) AND lease_until > 0;

-- name: list_steps
-- What is recorded, for a claim by a process that declares no steps. Takes no lock: the grant names the list again.
SELECT steps FROM semel_record WHERE id = :id;

-- name: lock_steps
-- What is recorded, for whoever settles the record. It is locked: whoever settles the record writes the list that it has read.
SELECT steps FROM semel_record WHERE id = :id
FOR UPDATE;

-- name: rewrite_steps
-- The list behind a record that has just been settled under this fence.
UPDATE semel_record SET steps = :steps WHERE id = :id AND fence = :fence;

-- name: note_open
-- Where resumable executions are looked for, without an index that every settlement would have to change.
INSERT IGNORE INTO semel_attention (id) VALUES (:id);

-- name: keep_request
-- What a run without the client needs; it is dropped with the settlement.
UPDATE semel_record SET request = :request
WHERE id = :id AND fence = :fence AND nonce = :nonce AND state IN (1, 2);

-- name: find_abandoned
-- A page of the resumable executions that nobody holds and that may go on.
SELECT r.id, r.operation, r.attempt, r.attempts_max, r.lease_until
FROM semel_attention AS a STRAIGHT_JOIN semel_record AS r ON r.id = a.id
WHERE r.state = 1 AND r.lease_until <= :now AND r.request IS NOT NULL
    AND (r.lease_until, r.id) > (:after, :after_id)
ORDER BY r.lease_until, r.id
LIMIT :limit;
