-- Statements about bulk items on SQLite, by name. A holder's write comes after `hold` in its transaction.
-- What SQLite and MariaDB share is in items.sql.

-- name: hold
-- Prove that the record is still this holder's, and renew its lease. No row: superseded.
UPDATE semel_record SET lease_until = max(lease_until, min(:now + lease_us, deadline_at))
WHERE id = :id AND fence = :fence AND nonce = :nonce AND state = 1;

-- name: begin_bulk
-- Create the counters of a new bulk.
INSERT INTO semel_bulk (
    operation_id, total, done, succeeded, failed, retryable, unknown, created_at, touched_at
) VALUES (:operation_id, :total, 0, 0, 0, 0, 0, :now, :now)
ON CONFLICT DO NOTHING;

-- name: put_item
-- Write an item's outcome, or that it has begun. A known outcome stays.
INSERT INTO semel_item (
    operation_id, place, item_id, state, target_id, result_id, error_code, retryable, detail, settled_at
) VALUES (
    :operation_id, :place, :item_id, :state, :target_id, :result_id, :error_code, :retryable, :detail, :now
)
ON CONFLICT (operation_id, place) DO UPDATE SET
    state = excluded.state, target_id = excluded.target_id, result_id = excluded.result_id,
    error_code = excluded.error_code, retryable = excluded.retryable, detail = excluded.detail,
    settled_at = excluded.settled_at
WHERE semel_item.state = 2 AND semel_item.item_id = excluded.item_id;

-- name: forget_items
-- Delete a chunk of an orphan's items.
DELETE FROM semel_item WHERE operation_id = :operation_id AND place < (
    SELECT min(place) + :limit FROM semel_item WHERE operation_id = :operation_id
);
