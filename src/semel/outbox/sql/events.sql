-- The outbox on SQLite and MariaDB: events are written by the settlement or on a user's connection; relays read and
-- mark them.

-- name: published
-- The broker has it.
UPDATE semel_event SET published_at = :now WHERE seq = :seq AND published_at IS NULL;

-- name: postpone
-- The broker refused an event: it is retried later, and later events of its aggregate wait.
UPDATE semel_event SET tries = tries + 1, reason = :reason, next_at = :now + :wait
WHERE seq = :seq AND published_at IS NULL AND parked_at IS NULL;

-- name: park
-- Park an event: no relay tries it again until an operator retries it.
UPDATE semel_event SET tries = tries + 1, reason = :reason, parked_at = :now
WHERE id = :id AND published_at IS NULL AND parked_at IS NULL;

-- name: park_row
-- The same, by place.
UPDATE semel_event SET tries = tries + 1, reason = :reason, parked_at = :now
WHERE seq = :seq AND published_at IS NULL AND parked_at IS NULL;

-- name: retry
-- Retry a parked event, with all its tries again.
UPDATE semel_event SET tries = 0, next_at = 0, parked_at = NULL
WHERE id = :id AND published_at IS NULL AND parked_at IS NOT NULL;

-- name: retry_row
-- The same, by place.
UPDATE semel_event SET tries = 0, next_at = 0, parked_at = NULL
WHERE seq = :seq AND published_at IS NULL AND parked_at IS NOT NULL;

-- name: drop
-- Drop a parked event: it is never published.
DELETE FROM semel_event WHERE id = :id AND published_at IS NULL AND parked_at IS NOT NULL;

-- name: drop_row
-- The same, by place.
DELETE FROM semel_event WHERE seq = :seq AND published_at IS NULL AND parked_at IS NOT NULL;

-- name: find
-- A page of unpublished events, oldest first: all or only parked ones, of all topics or of one.
SELECT
    e.seq, e.id, e.topic, e.type, e.aggregatetype, e.aggregateid,
    e.payload, e.headers, e.tenant, e.operation_id, e.created_at, e.tries,
    e.next_at, e.parked_at, e.reason
FROM semel_event AS e
WHERE e.published_at IS NULL AND e.seq > :after AND (:parked = 0 OR (e.parked_at IS NOT NULL AND e.tries > 0))
    AND (:topic IS NULL OR e.topic = :topic)
ORDER BY e.seq LIMIT :limit;

-- name: places
-- A page of all events, oldest first, without their payloads.
SELECT e.seq, e.id, e.topic, e.aggregatetype, e.aggregateid, e.created_at
FROM semel_event AS e WHERE e.seq > :after ORDER BY e.seq LIMIT :limit;

-- name: past
-- A page of published events that are still stored, oldest first.
SELECT
    e.seq, e.id, e.topic, e.type, e.aggregatetype, e.aggregateid,
    e.payload, e.headers, e.tenant, e.operation_id, e.created_at, e.tries
FROM semel_event AS e WHERE e.published_at IS NOT NULL AND e.seq > :after ORDER BY e.seq LIMIT :limit;
