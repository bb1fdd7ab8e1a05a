-- Statements about imports on MariaDB, by name.
-- What SQLite and MariaDB share is in imports.sql.

-- name: insert
-- A new job; no row is written where its key is taken.
INSERT IGNORE INTO semel_import (
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe,
    state, attempts, next_at, skipped, submissions, content_ref, keep_content_us, keep_us, created_at, last_seen_at
) VALUES (
    :id, :tenant, :operation, :supplier, :idempotency_key, 0, :digest, :bytes, :media_type, :recipe,
    1, 0, 0, 0, 1, :content_ref, :keep_content_us, :keep_us, :now, :now
);

-- name: put_name
-- A file name that the bytes came under; a job keeps a hundred names.
INSERT INTO semel_import_name (import_id, name, times, first_seen_at, last_seen_at)
SELECT :id, :name, 1, :now, :now FROM DUAL
WHERE (SELECT count(*) FROM semel_import_name WHERE import_id = :id AND name <> :name) < 100
ON DUPLICATE KEY UPDATE times = times + 1, last_seen_at = VALUES(last_seen_at);

-- name: forget_rows
-- Forget a chunk of the rows whose time is over.
DELETE FROM semel_import_row WHERE forget_after <= :now LIMIT :limit;

-- name: known
-- Which of these rows were booked before: one JSON array of [id in hex], since units take one statement at a time.
SELECT r.id FROM JSON_TABLE(:rows, '$[*]' COLUMNS (id CHAR(64) PATH '$[0]')) AS u
JOIN semel_import_row AS r ON r.id = UNHEX(u.id);

-- name: note
-- Rows are booked, from one JSON array of [id in hex, place]: one that was booked meanwhile is not written.
INSERT IGNORE INTO semel_import_row (id, import_id, place, forget_after)
SELECT UNHEX(u.id), :import_id, u.place, :now + :keep
FROM JSON_TABLE(:rows, '$[*]' COLUMNS (id CHAR(64) PATH '$[0]', place BIGINT PATH '$[1]')) AS u;

-- name: touch
-- Bytes are about to be kept: nobody drops them for a while.
INSERT INTO semel_import_blob (sha256, bytes, whole, touched_at) VALUES (:digest, :bytes, 0, :now)
ON DUPLICATE KEY UPDATE touched_at = VALUES(touched_at);

-- name: put_part
-- One part of the bytes; the same bytes have the same parts.
INSERT INTO semel_import_part (sha256, place, body) VALUES (:digest, :place, :body)
ON DUPLICATE KEY UPDATE place = place;
