-- Statements about imports on SQLite, by name.
-- What SQLite and MariaDB share is in imports.sql.

-- name: insert
-- A new job; no row is written where its key is taken.
INSERT INTO semel_import (
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe,
    state, attempts, next_at, skipped, submissions, content_ref, keep_content_us, keep_us, created_at, last_seen_at
) VALUES (
    :id, :tenant, :operation, :supplier, :idempotency_key, 0, :digest, :bytes, :media_type, :recipe,
    1, 0, 0, 0, 1, :content_ref, :keep_content_us, :keep_us, :now, :now
)
ON CONFLICT DO NOTHING;

-- name: put_name
-- A file name that the bytes came under; a job keeps a hundred names.
INSERT INTO semel_import_name (import_id, name, times, first_seen_at, last_seen_at)
SELECT :id, :name, 1, :now, :now
WHERE (SELECT count(*) FROM semel_import_name WHERE import_id = :id AND name <> :name) < 100
ON CONFLICT (import_id, name) DO UPDATE SET
    times = semel_import_name.times + 1, last_seen_at = excluded.last_seen_at;

-- name: forget_rows
-- Forget a chunk of the rows whose time is over.
DELETE FROM semel_import_row WHERE id IN (
    SELECT id FROM semel_import_row WHERE forget_after <= :now LIMIT :limit
);

-- name: known
-- Whether a row was booked before.
SELECT id FROM semel_import_row WHERE id = :id;

-- name: note
-- A row is booked: nothing is written where it was booked meanwhile.
INSERT INTO semel_import_row (id, import_id, place, forget_after) VALUES (:id, :import_id, :place, :now + :keep)
ON CONFLICT DO NOTHING;

-- name: touch
-- Bytes are about to be kept: nobody drops them for a while.
INSERT INTO semel_import_blob (sha256, bytes, whole, touched_at) VALUES (:digest, :bytes, 0, :now)
ON CONFLICT (sha256) DO UPDATE SET touched_at = excluded.touched_at;

-- name: put_part
-- One part of the bytes; the same bytes have the same parts.
INSERT INTO semel_import_part (sha256, place, body) VALUES (:digest, :place, :body)
ON CONFLICT DO NOTHING;
