-- The outbox on MariaDB: events are written by the settlement or on a user's connection; relays read and mark them.
-- What SQLite and MariaDB share is in events.sql.

-- name: write
-- Write an event. If its id is there already it is the same event: nothing is written.
INSERT INTO semel_event (
    id, aggregatetype, aggregateid, type, payload, topic, headers, tenant, lane, operation_id, created_at
)
VALUES (
    :event_id, :aggregate_type, :aggregate_id, :event_type, :payload, :topic, :event_headers, :event_tenant, :lane,
    :emitter, :now
)
ON DUPLICATE KEY UPDATE id = id;

-- name: due
-- Events that may be published now, in order. A postponed or parked event blocks later ones of its aggregate.
WITH picked AS (
    SELECT e.seq, LENGTH(e.payload) AS bytes FROM semel_event AS e
    WHERE e.published_at IS NULL AND e.parked_at IS NULL AND (:lanes >> e.lane) & 1 = 1
        AND NOT EXISTS (
            SELECT 1 FROM semel_event AS s
            WHERE s.published_at IS NULL AND s.tries > 0 AND s.aggregateid = e.aggregateid
                AND s.aggregatetype = e.aggregatetype AND s.seq <= e.seq
                AND CASE WHEN s.parked_at IS NULL THEN s.next_at > :now ELSE :hold = 1 END
        )
    ORDER BY e.seq LIMIT :limit
),
placed AS (
    SELECT seq, CAST(SUM(bytes) OVER (ORDER BY seq) - bytes AS SIGNED) AS earlier FROM picked
)
SELECT
    e.seq, e.id, e.topic, e.type, e.aggregatetype, e.aggregateid,
    e.payload, e.headers, e.tenant, e.operation_id, e.created_at, e.tries
FROM placed AS p JOIN semel_event AS e ON e.seq = p.seq
WHERE p.earlier < :bytes
ORDER BY e.seq;

-- name: due_past
-- As `due`, without unavailable topics (",a,b,"): an event of such a topic also blocks later events of its aggregate,
-- not earlier ones. One scan over all unpublished events in each aggregate's order, whatever the planner estimates.
WITH walked AS (
    SELECT
        seq, parked_at,
        MAX(CASE
            WHEN LOCATE(CONCAT(',', topic, ','), :away) > 0 THEN 1
            WHEN tries = 0 THEN 0
            WHEN parked_at IS NOT NULL THEN :hold
            WHEN next_at > :now THEN 1
            ELSE 0
        END) OVER (PARTITION BY aggregateid, aggregatetype ORDER BY seq) AS stopped
    FROM semel_event WHERE published_at IS NULL AND (:lanes >> lane) & 1 = 1
),
picked AS (
    SELECT w.seq, LENGTH(e.payload) AS bytes FROM walked AS w JOIN semel_event AS e ON e.seq = w.seq
    WHERE w.stopped = 0 AND w.parked_at IS NULL
    ORDER BY w.seq LIMIT :limit
),
placed AS (
    SELECT seq, CAST(SUM(bytes) OVER (ORDER BY seq) - bytes AS SIGNED) AS earlier FROM picked
)
SELECT
    e.seq, e.id, e.topic, e.type, e.aggregatetype, e.aggregateid,
    e.payload, e.headers, e.tenant, e.operation_id, e.created_at, e.tries
FROM placed AS p JOIN semel_event AS e ON e.seq = p.seq
WHERE p.earlier < :bytes
ORDER BY e.seq;

-- name: topics
-- Waiting and parked events by topic, and since when the oldest waits; the topic that waits longest first.
SELECT :now, t.topic, t.waiting, t.parked, t.oldest FROM (
    SELECT topic, COUNT(*) - COUNT(parked_at) AS waiting, COUNT(parked_at) AS parked,
        MIN(CASE WHEN parked_at IS NULL THEN created_at END) AS oldest
    FROM semel_event WHERE published_at IS NULL GROUP BY topic
) AS t
ORDER BY t.oldest IS NULL, t.oldest, t.topic LIMIT :limit;

-- name: disabled
-- Topics with a disabled endpoint: an event of theirs is parked for this reason.
SELECT DISTINCT topic FROM semel_event
WHERE published_at IS NULL AND tries > 0 AND parked_at IS NOT NULL AND LEFT(reason, CHAR_LENGTH(:gone)) = :gone;

-- name: depth
-- How many wait, how many are parked, and since when the oldest waits.
SELECT :now, COUNT(*) - COUNT(parked_at), COUNT(parked_at), MIN(CASE WHEN parked_at IS NULL THEN created_at END)
FROM semel_event WHERE published_at IS NULL;

-- name: sweep
-- Delete a chunk of events that were published long enough ago.
DELETE FROM semel_event WHERE published_at < :now - :keep ORDER BY published_at LIMIT :chunk;
