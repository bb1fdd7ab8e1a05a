-- Every statement of the inbox on PostgreSQL, by name.

-- name: look
-- The recorded state of a message.
SELECT handled_at, tries, parked_at, reason FROM semel_inbox
WHERE consumer = :consumer::text AND message_id = :message_id::text;

-- name: lock
-- Try to lock the message before its transaction writes, without waiting, and hold the lock to the end: a redelivery
-- does not wait for a worker that still handles it.
SELECT pg_try_advisory_xact_lock(:lock::bigint # ('semel_inbox'::regclass::oid::bigint << 32))::integer;

-- name: enter
-- The first write of a message's transaction: a handler that commits early marks the message as handled, for ever.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
INSERT INTO semel_inbox (consumer, message_id, handled_at, tries, forget_after)
SELECT :consumer::text, :message_id::text, clock.now, 0, clock.now + :keep_us::bigint FROM clock
ON CONFLICT DO NOTHING
RETURNING 1;

-- name: take
-- The same for a message that was tried before, and neither handled nor parked.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
UPDATE semel_inbox SET handled_at = clock.now, forget_after = clock.now + :keep_us::bigint FROM clock
WHERE consumer = :consumer::text AND message_id = :message_id::text AND handled_at IS NULL AND parked_at IS NULL
RETURNING 1;

-- name: prove
-- The last statement: unless the row is this transaction's own it divides by zero, so that no commit is possible.
SELECT 1 / count(*) FROM semel_inbox
WHERE consumer = :consumer::text AND message_id = :message_id::text AND handled_at IS NOT NULL
    AND xmin::text = (pg_current_xact_id()::text::numeric % 4294967296)::text;

-- name: failed
-- Count a failed try; the last one parks the message.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
INSERT INTO semel_inbox (consumer, message_id, tries, parked_at, reason, forget_after)
SELECT
    :consumer::text, :message_id::text, :tries::integer,
    CASE WHEN :tries::integer >= :tries_max::integer THEN clock.now END, :reason::text, clock.now + :keep_us::bigint
FROM clock
ON CONFLICT (consumer, message_id) DO UPDATE SET
    tries = greatest(semel_inbox.tries + :step::integer, excluded.tries),
    parked_at = CASE
        WHEN greatest(semel_inbox.tries + :step::integer, excluded.tries) >= :tries_max::integer
            THEN excluded.forget_after - :keep_us::bigint
    END,
    reason = excluded.reason,
    forget_after = excluded.forget_after
WHERE semel_inbox.handled_at IS NULL AND semel_inbox.parked_at IS NULL
RETURNING 1;

-- name: parked
-- Messages that wait for an operator, by name.
SELECT message_id, tries, parked_at, reason FROM semel_inbox
WHERE consumer = :consumer::text AND parked_at IS NOT NULL AND message_id > :after::text
ORDER BY message_id LIMIT :limit::bigint;

-- name: open
-- A page of messages that were tried and not handled, of all consumers or one: all, or only parked ones.
SELECT consumer, message_id, tries, parked_at, reason FROM semel_inbox
WHERE handled_at IS NULL AND (:parked::integer = 0 OR parked_at IS NOT NULL)
    AND (:consumer::text = '' OR consumer = :consumer::text)
    AND (consumer > :after_consumer::text OR (consumer = :after_consumer::text AND message_id > :after::text))
ORDER BY consumer, message_id LIMIT :limit::bigint;

-- name: standing
-- Count tried, unhandled messages and the parked ones, with the first parking. Reads only those, by their index.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
SELECT (SELECT now FROM clock), count(*) FILTER (WHERE parked_at IS NULL), count(parked_at), min(parked_at)
FROM semel_inbox WHERE handled_at IS NULL;

-- name: release
-- Forget the tries of a message, so that it may be delivered again.
DELETE FROM semel_inbox WHERE consumer = :consumer::text AND message_id = :message_id::text AND handled_at IS NULL
RETURNING 1;

-- name: purge
-- Delete a chunk of messages that no broker will deliver again.
DELETE FROM semel_inbox WHERE (consumer, message_id) IN (
    SELECT i.consumer, i.message_id FROM semel_inbox AS i
    WHERE i.forget_after <= coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
        AND i.parked_at IS NULL
    ORDER BY i.forget_after LIMIT :limit::bigint FOR UPDATE SKIP LOCKED
)
RETURNING 1;
