-- Statements of the inbox by name, that SQLite and MariaDB share.

-- name: look
-- The recorded state of a message.
SELECT handled_at, tries, parked_at, reason FROM semel_inbox WHERE consumer = :consumer AND message_id = :message_id;

-- name: prove
-- The last statement: the message is still in this transaction.
UPDATE semel_inbox SET forget_after = forget_after + 1
WHERE consumer = :consumer AND message_id = :message_id AND handled_at IS NOT NULL;

-- name: parked
-- Messages that wait for an operator, by name.
SELECT message_id, tries, parked_at, reason FROM semel_inbox
WHERE consumer = :consumer AND parked_at IS NOT NULL AND message_id > :after
ORDER BY message_id LIMIT :limit;

-- name: open
-- A page of messages that were tried and not handled, of all consumers or one: all, or only parked ones.
SELECT consumer, message_id, tries, parked_at, reason FROM semel_inbox
WHERE handled_at IS NULL AND (:parked = 0 OR parked_at IS NOT NULL)
    AND (:consumer = '' OR consumer = :consumer)
    AND (consumer > :after_consumer OR (consumer = :after_consumer AND message_id > :after))
ORDER BY consumer, message_id LIMIT :limit;

-- name: release
-- Forget the tries of a message, so that it may be delivered again.
DELETE FROM semel_inbox WHERE consumer = :consumer AND message_id = :message_id AND handled_at IS NULL;
