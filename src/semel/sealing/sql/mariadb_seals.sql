-- What `semel reseal` and `semel doctor` read and write on MariaDB beside answers: details, steps, requests, kept files.
-- What SQLite and MariaDB share is in seals.sql.

-- name: details_page
-- A page of the details of items.
SELECT operation_id, place, detail FROM semel_item
WHERE (operation_id > :operation_id OR (operation_id = :operation_id AND place > :place)) AND detail IS NOT NULL
ORDER BY operation_id, place LIMIT :limit;

-- name: records_open
-- The same for executions that may continue: those that need attention, and those that no reaper has read yet.
SELECT r.id, r.generation, r.steps, r.request FROM semel_attention AS a STRAIGHT_JOIN semel_record AS r ON r.id = a.id
WHERE r.state IN (1, 2, 6) AND (r.steps IS NOT NULL OR r.request IS NOT NULL)
UNION
SELECT id, generation, steps, request FROM semel_record
WHERE seq > (SELECT horizon FROM semel_meta) AND state IN (1, 2, 6) AND (steps IS NOT NULL OR request IS NOT NULL)
LIMIT :limit;

-- name: files_page
-- A page of the sealed parts of kept files, and how many bytes their file has.
SELECT p.sha256, p.place, b.bytes, p.body FROM semel_import_part AS p
JOIN semel_import_blob AS b ON b.sha256 = p.sha256
WHERE p.place >= :first AND (p.sha256 > :digest OR (p.sha256 = :digest AND p.place > :place))
ORDER BY p.sha256, p.place LIMIT :limit;
