-- Statements of the inbox on MariaDB, by name.
-- What SQLite and MariaDB share is in inbox.sql.

-- name: enter
-- The first write of a message's transaction: a handler that commits early marks the message as handled, for ever.
-- A redelivery waits here only a moment for a worker that still handles it. The caller checks lengths.
SET STATEMENT innodb_lock_wait_timeout = 0 FOR
INSERT IGNORE INTO semel_inbox (consumer, message_id, handled_at, tries, forget_after)
VALUES (:consumer, :message_id, :now, 0, :now + :keep_us);

-- name: take
-- The same for a message that was tried before, and neither handled nor parked.
SET STATEMENT innodb_lock_wait_timeout = 0 FOR
UPDATE semel_inbox SET handled_at = :now, forget_after = :now + :keep_us
WHERE consumer = :consumer AND message_id = :message_id AND handled_at IS NULL AND parked_at IS NULL;

-- name: failed
-- Count a failed try; the last one parks the message. `parked_at` is written last, because it reads the new `tries`.
INSERT INTO semel_inbox (consumer, message_id, tries, parked_at, reason, forget_after)
VALUES (
    :consumer, :message_id, :tries, IF(:tries >= :tries_max, :now, NULL), :reason, :now + :keep_us
)
ON DUPLICATE KEY UPDATE
    reason = IF(handled_at IS NULL AND parked_at IS NULL, VALUES(reason), reason),
    forget_after = IF(handled_at IS NULL AND parked_at IS NULL, VALUES(forget_after), forget_after),
    tries = IF(handled_at IS NULL AND parked_at IS NULL, GREATEST(tries + :step, VALUES(tries)), tries),
    parked_at = IF(handled_at IS NULL AND parked_at IS NULL AND tries >= :tries_max, :now, parked_at);

-- name: standing
-- Count tried, unhandled messages and the parked ones, with the first parking. Reads only those, by their index.
SELECT :now, COUNT(*) - COUNT(parked_at), COUNT(parked_at), MIN(parked_at)
FROM semel_inbox WHERE handled_at IS NULL;

-- name: purge
-- Delete a chunk of messages that no broker will deliver again.
DELETE FROM semel_inbox WHERE forget_after <= :now AND parked_at IS NULL ORDER BY forget_after LIMIT :limit;
