-- Every statement about imports on PostgreSQL, by name.

-- name: by_key
-- The job that has this key: one look into the unique index.
SELECT
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe, state, attempts,
    next_at, error_code, reason, row_count, booked, skipped, failed, unknown, submissions, bulk_id, content_ref,
    content_until, keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at, forget_after
FROM semel_import
WHERE tenant = :tenant::text AND operation = :operation::text AND idempotency_key = :idempotency_key::text;

-- name: by_id
-- One job.
SELECT
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe, state, attempts,
    next_at, error_code, reason, row_count, booked, skipped, failed, unknown, submissions, bulk_id, content_ref,
    content_until, keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at, forget_after
FROM semel_import
WHERE id = :id::bytea;

-- name: by_beginning
-- Jobs whose keys begin so, in the keys' order.
SELECT
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe, state, attempts,
    next_at, error_code, reason, row_count, booked, skipped, failed, unknown, submissions, bulk_id, content_ref,
    content_until, keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at, forget_after
FROM semel_import
WHERE tenant = :tenant::text AND operation = :operation::text AND idempotency_key >= :low::text
    AND idempotency_key < :high::text
ORDER BY idempotency_key LIMIT :limit::bigint;

-- name: page
-- Jobs, the newest first; a state of 0 is any, an empty text is any.
SELECT
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe, state, attempts,
    next_at, error_code, reason, row_count, booked, skipped, failed, unknown, submissions, bulk_id, content_ref,
    content_until, keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at, forget_after
FROM semel_import
WHERE id < :before::bytea AND (:state::smallint = 0 OR state = :state::smallint)
    AND (:operation::text = '' OR operation = :operation::text)
    AND (:supplier::text = '' OR supplier = :supplier::text)
ORDER BY id DESC LIMIT :limit::bigint;

-- name: found_by_key
-- Jobs whose keys begin so, of any tenant and operation: for operators.
SELECT
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe, state, attempts,
    next_at, error_code, reason, row_count, booked, skipped, failed, unknown, submissions, bulk_id, content_ref,
    content_until, keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at, forget_after
FROM semel_import
WHERE idempotency_key >= :low::text AND idempotency_key < :high::text
ORDER BY id DESC LIMIT :limit::bigint;

-- name: insert
-- A new job; no row is written where its key is taken.
INSERT INTO semel_import (
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe,
    state, attempts, next_at, skipped, submissions, content_ref, keep_content_us, keep_us, created_at, last_seen_at
) VALUES (
    :id::bytea, :tenant::text, :operation::text, :supplier::text, :idempotency_key::text, 0, :digest::bytea,
        :bytes::bigint, :media_type::text, :recipe::text,
    1, 0, 0, 0, 1, :content_ref::text, :keep_content_us::bigint, :keep_us::bigint, coalesce(:now::bigint,
        (extract(epoch FROM statement_timestamp()) * 1000000)::bigint), coalesce(:now::bigint,
        (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
)
ON CONFLICT DO NOTHING
RETURNING 1;

-- name: seen
-- The same upload once more.
UPDATE semel_import SET submissions = submissions + 1, last_seen_at = coalesce(:now::bigint,
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) WHERE id = :id::bytea
RETURNING 1;

-- name: put_name
-- A file name that the bytes came under; a job keeps a hundred names.
INSERT INTO semel_import_name (import_id, name, times, first_seen_at, last_seen_at)
SELECT :id::bytea, :name::text, 1, coalesce(:now::bigint,
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint), coalesce(:now::bigint,
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
WHERE (SELECT count(*) FROM semel_import_name WHERE import_id = :id::bytea AND name <> :name::text) < 100
ON CONFLICT (import_id, name) DO UPDATE SET
    times = semel_import_name.times + 1, last_seen_at = excluded.last_seen_at
RETURNING 1;

-- name: names
-- The file names of a job, in the order in which they came.
SELECT name, times, first_seen_at, last_seen_at FROM semel_import_name
WHERE import_id = :id::bytea ORDER BY first_seen_at, name LIMIT 100;

-- name: due
-- Jobs that a process may take now, the oldest first.
SELECT id FROM semel_import
WHERE state IN (1, 2) AND next_at <= coalesce(:now::bigint,
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AND operation = :operation::text
ORDER BY id LIMIT :limit::bigint;

-- name: lapse
-- For how long any process could have taken an open job; less than 0: until one can.
SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
    - greatest(next_at, created_at)
FROM semel_import WHERE id = :id::bytea AND state IN (1, 2);

-- name: overdue
-- Open jobs that no process has taken for so long, and for how long, the longest first.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
SELECT id, operation, idempotency_key, state, (SELECT now FROM clock) - greatest(next_at, created_at)
FROM semel_import
WHERE state IN (1, 2) AND next_at < (SELECT now FROM clock) - :grace::bigint
    AND created_at < (SELECT now FROM clock) - :grace::bigint
ORDER BY next_at LIMIT :limit::bigint;

-- name: of_bulk
-- The job whose rows are this bulk's.
SELECT
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe, state, attempts,
    next_at, error_code, reason, row_count, booked, skipped, failed, unknown, submissions, bulk_id, content_ref,
    content_until, keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at, forget_after
FROM semel_import
WHERE tenant = :tenant::text AND operation = :operation::text AND bulk_id = :bulk_id::bytea;

-- name: take
-- Take a job: other processes leave it alone for as long. What keeps two runs apart is the bulk's own lease.
UPDATE semel_import SET
    state = 2, attempts = attempts + 1, next_at = coalesce(:now::bigint,
        (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) + :lease::bigint,
        started_at = coalesce(started_at, coalesce(:now::bigint,
        (extract(epoch FROM statement_timestamp()) * 1000000)::bigint))
WHERE id = :id::bytea AND state IN (1, 2) AND next_at <= coalesce(:now::bigint,
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
RETURNING 1;

-- name: beat
-- The process that runs a job is alive.
UPDATE semel_import SET next_at = coalesce(:now::bigint,
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) + :lease::bigint WHERE id = :id::bytea
    AND generation = :generation::bigint AND state = 2
RETURNING 1;

-- name: begun
-- The bulk that has the rows of a job.
UPDATE semel_import SET bulk_id = :bulk_id::bytea, recipe = :recipe::text WHERE id = :id::bytea
    AND generation = :generation::bigint
RETURNING 1;

-- name: refuse
-- Every row of the job will fail, since one of them is wrong.
UPDATE semel_import SET error_code = :error_code::text WHERE id = :id::bytea
    AND generation = :generation::bigint AND state = 2
RETURNING 1;

-- name: postpone
-- A run failed: the next one comes later.
UPDATE semel_import SET next_at = coalesce(:now::bigint,
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) + :delay::bigint, reason = :reason::text
WHERE id = :id::bytea AND generation = :generation::bigint AND state = 2
RETURNING 1;

-- name: end
-- The job is over.
UPDATE semel_import SET
    state = :state::smallint,
    error_code = CASE WHEN error_code = 'ROWS_REFUSED' THEN error_code ELSE :error_code::text END,
    reason = :reason::text, row_count = :row_count::bigint,
    booked = :succeeded::bigint - skipped, failed = :failed::bigint, unknown = :unknown::bigint,
        ended_at = coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint),
    content_until = coalesce(:now::bigint,
        (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) + keep_content_us,
        forget_after = coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) + keep_us
WHERE id = :id::bytea AND generation = :generation::bigint AND state IN (1, 2)
RETURNING 1;

-- name: skip
-- Rows that were skipped, counted in the transaction of their chunk.
UPDATE semel_import SET skipped = skipped + :count::bigint WHERE id = :id::bytea
RETURNING 1;

-- name: reopen
-- An operator has a job go on, or has its bytes processed again.
UPDATE semel_import SET
    state = 1, attempts = 0,
    next_at = coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint), generation = :generation::bigint, reason = NULL, row_count = NULL,
    error_code = CASE WHEN :again::bigint = 0 AND error_code = 'ROWS_REFUSED' THEN error_code ELSE NULL END,
    booked = NULL, failed = NULL, unknown = NULL, skipped = CASE WHEN :again::bigint = 1 THEN 0 ELSE skipped END,
    bulk_id = CASE WHEN :again::bigint = 1 THEN NULL ELSE bulk_id END, ended_at = NULL, content_until = NULL,
    forget_after = NULL
WHERE id = :id::bytea AND generation = :was::bigint AND state = :state::smallint AND content_ref IS NOT NULL
RETURNING 1;

-- name: audit
-- What an operator did, and why.
INSERT INTO semel_audit (at, record_id, actor, action, reason, fence)
VALUES (coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint), :record_id::bytea,
    :actor::text, :action::text, :reason::text, :fence::bigint)
RETURNING 1;

-- name: content_due
-- Jobs whose bytes need no longer be kept.
SELECT id, sha256, content_ref FROM semel_import WHERE content_until <= coalesce(:now::bigint,
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) ORDER BY content_until LIMIT :limit::bigint;

-- name: drop_content
-- A job's bytes are no longer kept for it.
UPDATE semel_import SET content_ref = NULL, content_until = NULL
WHERE id = :id::bytea AND content_until IS NOT NULL
RETURNING 1;

-- name: users
-- Whether a job needs these bytes.
SELECT count(*) FROM semel_import WHERE sha256 = :digest::bytea AND content_ref IS NOT NULL;

-- name: over
-- Jobs whose own time is over.
SELECT id FROM semel_import WHERE forget_after <= coalesce(:now::bigint,
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) ORDER BY forget_after LIMIT :limit::bigint;

-- name: forget
-- Forget a job.
DELETE FROM semel_import WHERE id = :id::bytea AND forget_after IS NOT NULL
RETURNING 1;

-- name: forget_names
-- Forget a job's names.
DELETE FROM semel_import_name WHERE import_id = :id::bytea
RETURNING 1;

-- name: forget_rows
-- Forget a chunk of the rows whose time is over.
DELETE FROM semel_import_row WHERE id IN (
    SELECT id FROM semel_import_row WHERE forget_after <= coalesce(:now::bigint,
        (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) LIMIT :limit::bigint
)
RETURNING 1;

-- name: known
-- Which of these rows were booked before.
SELECT r.id FROM unnest(:id::bytea[]) AS u (id) JOIN semel_import_row AS r ON r.id = u.id;

-- name: note
-- Rows are booked: one that was booked meanwhile is not written. In the order of their ids, so that no two wait for
-- each other.
INSERT INTO semel_import_row (id, import_id, place, forget_after)
SELECT u.id, u.import_id, u.place, coalesce(:now::bigint,
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) + u.keep
FROM unnest(:id::bytea[], :import_id::bytea[], :place::bigint[], :keep::bigint[]) AS u (id, import_id, place, keep)
ORDER BY u.id
ON CONFLICT DO NOTHING
RETURNING 1;

-- name: touch
-- Bytes are about to be kept: nobody drops them for a while.
INSERT INTO semel_import_blob (sha256, bytes, whole, touched_at) VALUES (:digest::bytea, :bytes::bigint, 0,
    coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint))
ON CONFLICT (sha256) DO UPDATE SET touched_at = excluded.touched_at
RETURNING 1;

-- name: blob
-- In which forms bytes are kept whole, and how many they are.
SELECT whole, bytes FROM semel_import_blob WHERE sha256 = :digest::bytea;

-- name: put_part
-- One part of the bytes; the same bytes have the same parts.
INSERT INTO semel_import_part (sha256, place, body) VALUES (:digest::bytea, :place::bigint, :body::bytea)
ON CONFLICT DO NOTHING
RETURNING 1;

-- name: end_blob
-- All parts are there, in one of the two forms: 1 as they are, 2 sealed. Each form has places of its own.
UPDATE semel_import_blob SET whole = whole | :form::smallint, touched_at = coalesce(:now::bigint,
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
WHERE sha256 = :digest::bytea AND (
    SELECT count(*) FROM semel_import_part WHERE sha256 = :digest::bytea AND place >= :first::bigint AND place < :past::bigint
) = :parts::bigint
RETURNING 1;

-- name: part
-- One part.
SELECT body FROM semel_import_part WHERE sha256 = :digest::bytea AND place = :place::bigint;

-- name: unused
-- Bytes that no job needs, and that nobody has touched for a while.
SELECT b.sha256 FROM semel_import_blob AS b
WHERE b.touched_at <= coalesce(:now::bigint,
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) - :grace::bigint AND NOT EXISTS (
    SELECT 1 FROM semel_import AS i WHERE i.sha256 = b.sha256 AND i.content_ref IS NOT NULL
)
ORDER BY b.sha256 LIMIT :limit::bigint;

-- name: drop_blob
-- Drop such bytes; their parts go in the same transaction.
DELETE FROM semel_import_blob
WHERE sha256 = :digest::bytea AND touched_at <= coalesce(:now::bigint,
    (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) - :grace::bigint AND NOT EXISTS (
    SELECT 1 FROM semel_import AS i WHERE i.sha256 = :digest::bytea AND i.content_ref IS NOT NULL
)
RETURNING 1;

-- name: drop_parts
-- Their parts.
DELETE FROM semel_import_part WHERE sha256 = :digest::bytea
RETURNING 1;

-- name: doubt_blob
-- What is kept in one form is not what was sent: sending it again writes it anew.
UPDATE semel_import_blob SET whole = whole & :others::smallint WHERE sha256 = :digest::bytea
RETURNING 1;

-- name: drop_form
-- The parts of that form.
DELETE FROM semel_import_part WHERE sha256 = :digest::bytea AND place >= :first::bigint AND place < :past::bigint
RETURNING 1;
