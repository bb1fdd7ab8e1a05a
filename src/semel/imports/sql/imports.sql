-- Statements about imports by name, that SQLite and MariaDB share.

-- name: by_key
-- The job that has this key: one look into the unique index.
SELECT
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe, state, attempts,
    next_at, error_code, reason, row_count, booked, skipped, failed, unknown, submissions, bulk_id, content_ref,
    content_until, keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at, forget_after
FROM semel_import
WHERE tenant = :tenant AND operation = :operation AND idempotency_key = :idempotency_key;

-- name: by_id
-- One job.
SELECT
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe, state, attempts,
    next_at, error_code, reason, row_count, booked, skipped, failed, unknown, submissions, bulk_id, content_ref,
    content_until, keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at, forget_after
FROM semel_import
WHERE id = :id;

-- name: by_beginning
-- Jobs whose keys begin so, in the keys' order.
SELECT
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe, state, attempts,
    next_at, error_code, reason, row_count, booked, skipped, failed, unknown, submissions, bulk_id, content_ref,
    content_until, keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at, forget_after
FROM semel_import
WHERE tenant = :tenant AND operation = :operation AND idempotency_key >= :low AND idempotency_key < :high
ORDER BY idempotency_key LIMIT :limit;

-- name: page
-- Jobs, the newest first; a state of 0 is any, an empty text is any.
SELECT
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe, state, attempts,
    next_at, error_code, reason, row_count, booked, skipped, failed, unknown, submissions, bulk_id, content_ref,
    content_until, keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at, forget_after
FROM semel_import
WHERE id < :before AND (:state = 0 OR state = :state) AND (:operation = '' OR operation = :operation)
    AND (:supplier = '' OR supplier = :supplier)
ORDER BY id DESC LIMIT :limit;

-- name: found_by_key
-- Jobs whose keys begin so, of any tenant and operation: for operators.
SELECT
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe, state, attempts,
    next_at, error_code, reason, row_count, booked, skipped, failed, unknown, submissions, bulk_id, content_ref,
    content_until, keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at, forget_after
FROM semel_import
WHERE idempotency_key >= :low AND idempotency_key < :high
ORDER BY id DESC LIMIT :limit;

-- name: seen
-- The same upload once more.
UPDATE semel_import SET submissions = submissions + 1, last_seen_at = :now WHERE id = :id;

-- name: names
-- The file names of a job, in the order in which they came.
SELECT name, times, first_seen_at, last_seen_at FROM semel_import_name
WHERE import_id = :id ORDER BY first_seen_at, name LIMIT 100;

-- name: due
-- Jobs that a process may take now, the oldest first. By the ids in their order, SQLite would read every job there is.
SELECT id FROM semel_import
WHERE state IN (1, 2) AND next_at <= :now AND operation = :operation
ORDER BY +id LIMIT :limit;

-- name: lapse
-- For how long any process could have taken an open job; less than 0: until one can.
SELECT :now - CASE WHEN next_at < created_at THEN created_at ELSE next_at END
FROM semel_import WHERE id = :id AND state IN (1, 2);

-- name: overdue
-- Open jobs that no process has taken for so long, and for how long, the longest first.
SELECT id, operation, idempotency_key, state, :now - CASE WHEN next_at < created_at THEN created_at ELSE next_at END
FROM semel_import
WHERE state IN (1, 2) AND next_at < :now - :grace AND created_at < :now - :grace ORDER BY next_at LIMIT :limit;

-- name: of_bulk
-- The job whose rows are this bulk's.
SELECT
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe, state, attempts,
    next_at, error_code, reason, row_count, booked, skipped, failed, unknown, submissions, bulk_id, content_ref,
    content_until, keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at, forget_after
FROM semel_import
WHERE tenant = :tenant AND operation = :operation AND bulk_id = :bulk_id;

-- name: take
-- Take a job: other processes leave it alone for as long. What keeps two runs apart is the bulk's own lease.
UPDATE semel_import SET
    state = 2, attempts = attempts + 1, next_at = :now + :lease, started_at = coalesce(started_at, :now)
WHERE id = :id AND state IN (1, 2) AND next_at <= :now;

-- name: beat
-- The process that runs a job is alive.
UPDATE semel_import SET next_at = :now + :lease WHERE id = :id AND generation = :generation AND state = 2;

-- name: begun
-- The bulk that has the rows of a job.
UPDATE semel_import SET bulk_id = :bulk_id, recipe = :recipe WHERE id = :id AND generation = :generation;

-- name: refuse
-- Every row of the job will fail, since one of them is wrong.
UPDATE semel_import SET error_code = :error_code WHERE id = :id AND generation = :generation AND state = 2;

-- name: postpone
-- A run failed: the next one comes later.
UPDATE semel_import SET next_at = :now + :delay, reason = :reason
WHERE id = :id AND generation = :generation AND state = 2;

-- name: end
-- The job is over.
UPDATE semel_import SET
    state = :state,
    error_code = CASE WHEN error_code = 'ROWS_REFUSED' THEN error_code ELSE :error_code END,
    reason = :reason, row_count = :row_count,
    booked = :succeeded - skipped, failed = :failed, unknown = :unknown, ended_at = :now,
    content_until = :now + keep_content_us, forget_after = :now + keep_us
WHERE id = :id AND generation = :generation AND state IN (1, 2);

-- name: skip
-- Rows that were skipped, counted in the transaction of their chunk.
UPDATE semel_import SET skipped = skipped + :count WHERE id = :id;

-- name: reopen
-- An operator has a job go on, or has its bytes processed again.
UPDATE semel_import SET
    state = 1, attempts = 0, next_at = :now, generation = :generation, reason = NULL, row_count = NULL,
    error_code = CASE WHEN :again = 0 AND error_code = 'ROWS_REFUSED' THEN error_code ELSE NULL END,
    booked = NULL, failed = NULL, unknown = NULL, skipped = CASE WHEN :again = 1 THEN 0 ELSE skipped END,
    bulk_id = CASE WHEN :again = 1 THEN NULL ELSE bulk_id END, ended_at = NULL, content_until = NULL,
    forget_after = NULL
WHERE id = :id AND generation = :was AND state = :state AND content_ref IS NOT NULL;

-- name: audit
-- What an operator did, and why.
INSERT INTO semel_audit (at, record_id, actor, action, reason, fence)
VALUES (:now, :record_id, :actor, :action, :reason, :fence);

-- name: content_due
-- Jobs whose bytes need no longer be kept.
SELECT id, sha256, content_ref FROM semel_import WHERE content_until <= :now ORDER BY content_until LIMIT :limit;

-- name: drop_content
-- A job's bytes are no longer kept for it.
UPDATE semel_import SET content_ref = NULL, content_until = NULL
WHERE id = :id AND content_until IS NOT NULL;

-- name: users
-- Whether a job needs these bytes.
SELECT count(*) FROM semel_import WHERE sha256 = :digest AND content_ref IS NOT NULL;

-- name: over
-- Jobs whose own time is over.
SELECT id FROM semel_import WHERE forget_after <= :now ORDER BY forget_after LIMIT :limit;

-- name: forget
-- Forget a job.
DELETE FROM semel_import WHERE id = :id AND forget_after IS NOT NULL;

-- name: forget_names
-- Forget a job's names.
DELETE FROM semel_import_name WHERE import_id = :id;

-- name: blob
-- In which forms bytes are kept whole, and how many they are.
SELECT whole, bytes FROM semel_import_blob WHERE sha256 = :digest;

-- name: end_blob
-- All parts are there, in one of the two forms: 1 as they are, 2 sealed. Each form has places of its own.
UPDATE semel_import_blob SET whole = whole | :form, touched_at = :now
WHERE sha256 = :digest AND (
    SELECT count(*) FROM semel_import_part WHERE sha256 = :digest AND place >= :first AND place < :past
) = :parts;

-- name: part
-- One part.
SELECT body FROM semel_import_part WHERE sha256 = :digest AND place = :place;

-- name: unused
-- Bytes that no job needs, and that nobody has touched for a while.
SELECT b.sha256 FROM semel_import_blob AS b
WHERE b.touched_at <= :now - :grace AND NOT EXISTS (
    SELECT 1 FROM semel_import AS i WHERE i.sha256 = b.sha256 AND i.content_ref IS NOT NULL
)
ORDER BY b.sha256 LIMIT :limit;

-- name: drop_blob
-- Drop such bytes; their parts go in the same transaction.
DELETE FROM semel_import_blob
WHERE sha256 = :digest AND touched_at <= :now - :grace AND NOT EXISTS (
    SELECT 1 FROM semel_import AS i WHERE i.sha256 = :digest AND i.content_ref IS NOT NULL
);

-- name: drop_parts
-- Their parts.
DELETE FROM semel_import_part WHERE sha256 = :digest;

-- name: doubt_blob
-- What is kept in one form is not what was sent: sending it again writes it anew.
UPDATE semel_import_blob SET whole = whole & :others WHERE sha256 = :digest;

-- name: drop_form
-- The parts of that form.
DELETE FROM semel_import_part WHERE sha256 = :digest AND place >= :first AND place < :past;
