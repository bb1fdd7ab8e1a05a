-- What `semel reseal` and `semel doctor` read and write on PostgreSQL beside answers: details, steps, requests, kept files.

-- name: details_page
-- A page of the details of items.
SELECT operation_id, place, detail FROM semel_item
WHERE (operation_id, place) > (:operation_id::bytea, :place::bigint) AND detail IS NOT NULL
ORDER BY operation_id, place LIMIT :limit::bigint;

-- name: details_put
-- Replace a detail if it is unchanged.
UPDATE semel_item SET detail = :new::bytea
WHERE operation_id = :operation_id::bytea AND place = :place::bigint AND detail = :was::bytea
RETURNING 1;

-- name: details_newest
-- The heads of the newest details.
SELECT newest.operation_id, newest.place, substring(newest.detail FROM 1 FOR 128) FROM (
    SELECT operation_id, place, detail FROM semel_item ORDER BY operation_id DESC, place DESC LIMIT :limit::bigint
) AS newest
WHERE newest.detail IS NOT NULL;

-- name: records_page
-- A page of one stretch of records: their executions' steps and requests.
SELECT id, generation, steps, request FROM semel_record
WHERE id > :id::bytea AND id <= :reached::bytea AND (steps IS NOT NULL OR request IS NOT NULL)
ORDER BY id LIMIT :limit::bigint;

-- name: records_open
-- The same for executions that may continue: those that need attention, and those that no reaper has read yet.
SELECT r.id, r.generation, r.steps, r.request
FROM (SELECT id FROM semel_attention LIMIT :limit::bigint * 5) AS a
CROSS JOIN LATERAL (SELECT * FROM semel_record WHERE semel_record.id = a.id OFFSET 0) AS r
WHERE r.state IN (1, 2, 6) AND (r.steps IS NOT NULL OR r.request IS NOT NULL)
UNION
SELECT n.id, n.generation, n.steps, n.request
FROM (
    SELECT * FROM semel_record WHERE seq > (SELECT horizon FROM semel_meta) ORDER BY seq LIMIT :limit::bigint * 5
) AS n
WHERE n.state IN (1, 2, 6) AND (n.steps IS NOT NULL OR n.request IS NOT NULL)
LIMIT :limit::bigint;

-- name: steps_put
-- Replace steps if they are unchanged.
UPDATE semel_record SET steps = :new::bytea WHERE id = :id::bytea AND steps = :was::bytea
RETURNING 1;

-- name: requests_put
-- Replace a request if it is unchanged.
UPDATE semel_record SET request = :new::bytea WHERE id = :id::bytea AND request = :was::bytea
RETURNING 1;

-- name: files_page
-- A page of the sealed parts of kept files, and how many bytes their file has.
SELECT p.sha256, p.place, b.bytes, p.body FROM semel_import_part AS p
JOIN semel_import_blob AS b ON b.sha256 = p.sha256
WHERE p.place >= :first::bigint AND (p.sha256, p.place) > (:digest::bytea, :place::bigint)
ORDER BY p.sha256, p.place LIMIT :limit::bigint;

-- name: files_put
-- Replace a part if it is unchanged.
UPDATE semel_import_part SET body = :new::bytea
WHERE sha256 = :digest::bytea AND place = :place::bigint AND body = :was::bytea
RETURNING 1;

-- name: files_newest
-- The heads of sealed parts.
SELECT p.sha256, p.place, b.bytes, substring(p.body FROM 1 FOR 128) FROM semel_import_part AS p
JOIN semel_import_blob AS b ON b.sha256 = p.sha256
WHERE p.place >= :first::bigint
ORDER BY b.touched_at DESC LIMIT :limit::bigint;
