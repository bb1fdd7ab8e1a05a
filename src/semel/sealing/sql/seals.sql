-- What `semel reseal` and `semel doctor` read and write on SQLite and MariaDB beside answers: details, steps, requests,
-- kept files.

-- name: details_put
-- Replace a detail if it is unchanged.
UPDATE semel_item SET detail = :new
WHERE operation_id = :operation_id AND place = :place AND detail = :was;

-- name: details_newest
-- The heads of the newest details.
SELECT newest.operation_id, newest.place, substr(newest.detail, 1, 128) FROM (
    SELECT operation_id, place, detail FROM semel_item ORDER BY operation_id DESC, place DESC LIMIT :limit
) AS newest
WHERE newest.detail IS NOT NULL;

-- name: records_page
-- A page of one stretch of records: their executions' steps and requests.
SELECT id, generation, steps, request FROM semel_record
WHERE id > :id AND id <= :reached AND (steps IS NOT NULL OR request IS NOT NULL)
ORDER BY id LIMIT :limit;

-- name: steps_put
-- Replace steps if they are unchanged.
UPDATE semel_record SET steps = :new WHERE id = :id AND steps = :was;

-- name: requests_put
-- Replace a request if it is unchanged.
UPDATE semel_record SET request = :new WHERE id = :id AND request = :was;

-- name: files_put
-- Replace a part if it is unchanged.
UPDATE semel_import_part SET body = :new
WHERE sha256 = :digest AND place = :place AND body = :was;

-- name: files_newest
-- The heads of sealed parts.
SELECT p.sha256, p.place, b.bytes, substr(p.body, 1, 128) FROM semel_import_part AS p
JOIN semel_import_blob AS b ON b.sha256 = p.sha256
WHERE p.place >= :first
ORDER BY b.touched_at DESC LIMIT :limit;
