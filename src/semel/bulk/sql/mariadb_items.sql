-- Statements about bulk items on MariaDB, by name. A holder's write comes after `hold` in its transaction.
-- What SQLite and MariaDB share is in items.sql.

-- name: hold
-- Prove that the record is still this holder's, and renew its lease. No row: superseded. It always changes the row, if
-- only by a microsecond: units count changed rows, and a lease does not grow beyond the deadline.
UPDATE semel_record SET lease_until = IF(
    LEAST(:now + lease_us, deadline_at) > lease_until, LEAST(:now + lease_us, deadline_at), lease_until - 1
)
WHERE id = :id AND fence = :fence AND nonce = :nonce AND state = 1;

-- name: begin_bulk
-- Create the counters of a new bulk.
INSERT INTO semel_bulk (
    operation_id, total, done, succeeded, failed, retryable, unknown, created_at, touched_at
) VALUES (:operation_id, :total, 0, 0, 0, 0, 0, :now, :now)
ON DUPLICATE KEY UPDATE total = total;

-- name: put_items
-- Write items' outcomes or beginnings from one JSON array: units take one statement at a time, and a row each would be
-- a round trip each. A known outcome stays; `state` is written last, since the other columns depend on it.
INSERT INTO semel_item (
    operation_id, place, item_id, state, target_id, result_id, error_code, retryable, detail, settled_at
)
SELECT
    :operation_id, u.place, u.item_id, u.state, u.target_id, u.result_id, u.error_code, u.retryable,
    FROM_BASE64(u.detail), :now
FROM JSON_TABLE(:rows, '$[*]' COLUMNS (
    place BIGINT PATH '$[0]',
    item_id VARCHAR(255) PATH '$[1]',
    state SMALLINT PATH '$[2]',
    target_id TEXT PATH '$[3]',
    result_id TEXT PATH '$[4]',
    error_code TEXT PATH '$[5]',
    retryable SMALLINT PATH '$[6]',
    detail LONGTEXT PATH '$[7]'
)) AS u
ON DUPLICATE KEY UPDATE
    target_id = IF(semel_item.state = 2, VALUES(target_id), semel_item.target_id),
    result_id = IF(semel_item.state = 2, VALUES(result_id), semel_item.result_id),
    error_code = IF(semel_item.state = 2, VALUES(error_code), semel_item.error_code),
    retryable = IF(semel_item.state = 2, VALUES(retryable), semel_item.retryable),
    detail = IF(semel_item.state = 2, VALUES(detail), semel_item.detail),
    settled_at = IF(semel_item.state = 2, VALUES(settled_at), semel_item.settled_at),
    state = IF(semel_item.state = 2, VALUES(state), semel_item.state);

-- name: forget_items
-- Delete a chunk of an orphan's items.
DELETE FROM semel_item WHERE operation_id = :operation_id ORDER BY place LIMIT :limit;
