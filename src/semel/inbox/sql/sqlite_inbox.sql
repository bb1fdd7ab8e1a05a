-- Statements of the inbox on SQLite, by name.
-- What SQLite and MariaDB share is in inbox.sql.

-- name: enter
-- The first write of a message's transaction: a handler that commits early marks the message as handled, for ever.
INSERT INTO semel_inbox (consumer, message_id, handled_at, tries, forget_after)
VALUES (:consumer, :message_id, :now, 0, :now + :keep_us)
ON CONFLICT DO NOTHING;

-- name: take
-- The same for a message that was tried before, and neither handled nor parked.
UPDATE semel_inbox SET handled_at = :now, forget_after = :now + :keep_us
WHERE consumer = :consumer AND message_id = :message_id AND handled_at IS NULL AND parked_at IS NULL;

-- name: failed
-- Count a failed try; the last one parks the message.
INSERT INTO semel_inbox (consumer, message_id, tries, parked_at, reason, forget_after)
VALUES (
    :consumer, :message_id, :tries, CASE WHEN :tries >= :tries_max THEN :now END, :reason, :now + :keep_us
)
ON CONFLICT (consumer, message_id) DO UPDATE SET
    tries = max(semel_inbox.tries + :step, excluded.tries),
    parked_at = CASE WHEN max(semel_inbox.tries + :step, excluded.tries) >= :tries_max THEN :now END,
    reason = excluded.reason,
    forget_after = excluded.forget_after
WHERE semel_inbox.handled_at IS NULL AND semel_inbox.parked_at IS NULL;

-- name: standing
-- Count tried, unhandled messages and the parked ones, with the first parking. Reads only those, by their index.
SELECT :now, count(*) - count(parked_at), count(parked_at), min(parked_at)
FROM semel_inbox WHERE handled_at IS NULL;

-- name: purge
-- Delete a chunk of messages that no broker will deliver again.
DELETE FROM semel_inbox WHERE (consumer, message_id) IN (
    SELECT i.consumer, i.message_id FROM semel_inbox AS i
    WHERE i.forget_after <= :now AND i.parked_at IS NULL
    ORDER BY i.forget_after LIMIT :limit
);
