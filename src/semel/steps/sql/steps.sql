-- The steps of an execution on SQLite and MariaDB. Every write names fence and nonce.

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

-- name: rewrite_steps
-- The list behind a record that has just been settled under this fence.
UPDATE semel_record SET steps = :steps WHERE id = :id AND fence = :fence;

-- name: keep_request
-- What a run without the client needs; it is dropped with the settlement.
UPDATE semel_record SET request = :request
WHERE id = :id AND fence = :fence AND nonce = :nonce AND state IN (1, 2);
