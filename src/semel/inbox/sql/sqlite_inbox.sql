-- Every statement of the inbox on SQLite, by name.

-- name: look
-- What is known of a message.
SELECT handled_at, tries, parked_at, reason FROM semel_inbox WHERE consumer = :consumer AND message_id = :message_id;

-- name: enter
-- The first write of a message's transaction: who commits it early has it handled, and it is never handled again.
INSERT INTO semel_inbox (consumer, message_id, handled_at, tries, forget_after)
VALUES (:consumer, :message_id, :now, 0, :now + :keep_us)
ON CONFLICT DO NOTHING;

-- name: take
-- The same of a message that was tried before, and neither handled nor parked.
UPDATE semel_inbox SET handled_at = :now, forget_after = :now + :keep_us
WHERE consumer = :consumer AND message_id = :message_id AND handled_at IS NULL AND parked_at IS NULL;

-- name: prove
-- The last: it is in this transaction still.
UPDATE semel_inbox SET forget_after = forget_after + 1
WHERE consumer = :consumer AND message_id = :message_id AND handled_at IS NOT NULL;

-- name: failed
-- One more try that came to nothing; the last one parks the message.
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

-- name: parked
-- What waits for an operator, by name.
SELECT message_id, tries, parked_at, reason FROM semel_inbox
WHERE consumer = :consumer AND parked_at IS NOT NULL AND message_id > :after
ORDER BY message_id LIMIT :limit;

-- name: open
-- A page of what was tried and not handled, of every consumer or of one: the parked ones, or all.
SELECT consumer, message_id, tries, parked_at, reason FROM semel_inbox
WHERE handled_at IS NULL AND (:parked = 0 OR parked_at IS NOT NULL)
    AND (:consumer = '' OR consumer = :consumer)
    AND (consumer > :after_consumer OR (consumer = :after_consumer AND message_id > :after))
ORDER BY consumer, message_id LIMIT :limit;

-- name: standing
-- How many were tried and not handled, how many of them are parked, and since when the first. Looks at those alone, by their index.
SELECT :now, count(*) - count(parked_at), count(parked_at), min(parked_at)
FROM semel_inbox WHERE handled_at IS NULL;

-- name: release
-- Forget the tries of a message, so that it may be delivered again.
DELETE FROM semel_inbox WHERE consumer = :consumer AND message_id = :message_id AND handled_at IS NULL;

-- name: purge
-- A chunk of what no broker will deliver again.
DELETE FROM semel_inbox WHERE (consumer, message_id) IN (
    SELECT i.consumer, i.message_id FROM semel_inbox AS i
    WHERE i.forget_after <= :now AND i.parked_at IS NULL
    ORDER BY i.forget_after LIMIT :limit
);
