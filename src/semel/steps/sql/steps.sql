-- The steps of an execution on SQLite and MariaDB. Every write names fence and nonce.

-- name: read_steps
-- Read the holder's list. No row for any other process.
SELECT steps, NULL
FROM semel_record
WHERE id = :id AND fence = :fence AND nonce = :nonce AND state IN (1, 2, 6) AND lease_until > 0;

-- name: write_steps
-- Write the whole list, with the state and doubt that follow from it. A record that is UNKNOWN under this fence and
-- nonce has lapsed: its holder continues.
UPDATE semel_record SET steps = :steps, state = :state, doubt = :doubt
WHERE id = :id AND fence = :fence AND nonce = :nonce AND state IN (1, 2, 6) AND lease_until > 0;

-- name: list_steps
-- Read the list for a claim by a process that declares no steps. Takes no lock: the grant compares the list again.
SELECT steps FROM semel_record WHERE id = :id;

-- name: rewrite_steps
-- Write the list after its record has been settled under this fence.
UPDATE semel_record SET steps = :steps WHERE id = :id AND fence = :fence;

-- name: keep_request
-- Keep the request for a run without the client; the settlement drops it.
UPDATE semel_record SET request = :request
WHERE id = :id AND fence = :fence AND nonce = :nonce AND state IN (1, 2);
