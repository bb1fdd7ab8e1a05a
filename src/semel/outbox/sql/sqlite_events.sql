-- The outbox on SQLite: events are written by the settlement or on a user's connection; relays read and mark them.
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
ON CONFLICT (id) DO NOTHING;

-- name: due
-- Events that may be published now, in order. A postponed or parked event blocks later ones of its aggregate.
WITH picked AS MATERIALIZED (
    SELECT e.seq, length(e.payload) AS bytes FROM semel_event AS e
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
    SELECT seq, sum(bytes) OVER (ORDER BY seq) - bytes AS before FROM picked
)
SELECT
    e.seq, e.id, e.topic, e.type, e.aggregatetype, e.aggregateid,
    e.payload, e.headers, e.tenant, e.operation_id, e.created_at, e.tries
FROM placed AS p JOIN semel_event AS e ON e.seq = p.seq
WHERE p.before < :bytes
ORDER BY e.seq;

-- name: due_past
-- As `due`, without unavailable topics (",a,b,"): an event of such a topic also blocks later events of its aggregate,
-- not earlier ones. One scan over all unpublished events in each aggregate's order, whatever the planner estimates.
WITH walked AS MATERIALIZED (
    SELECT
        seq, parked_at,
        max(CASE
            WHEN instr(:away, ',' || topic || ',') > 0 THEN 1
            WHEN tries = 0 THEN 0
            WHEN parked_at IS NOT NULL THEN :hold
            WHEN next_at > :now THEN 1
            ELSE 0
        END) OVER (PARTITION BY aggregateid, aggregatetype ORDER BY seq) AS stopped
    FROM semel_event WHERE published_at IS NULL AND (:lanes >> lane) & 1 = 1
),
picked AS (
    SELECT w.seq, length(e.payload) AS bytes FROM walked AS w JOIN semel_event AS e ON e.seq = w.seq
    WHERE w.stopped = 0 AND w.parked_at IS NULL
    ORDER BY w.seq LIMIT :limit
),
placed AS (
    SELECT seq, sum(bytes) OVER (ORDER BY seq) - bytes AS before FROM picked
)
SELECT
    e.seq, e.id, e.topic, e.type, e.aggregatetype, e.aggregateid,
    e.payload, e.headers, e.tenant, e.operation_id, e.created_at, e.tries
FROM placed AS p JOIN semel_event AS e ON e.seq = p.seq
WHERE p.before < :bytes
ORDER BY e.seq;

-- name: topics
-- Waiting and parked events by topic, and since when the oldest waits; the topic that waits longest first.
SELECT :now, topic, count(*) FILTER (WHERE parked_at IS NULL), count(*) FILTER (WHERE parked_at IS NOT NULL),
    min(created_at) FILTER (WHERE parked_at IS NULL) AS oldest
FROM semel_event WHERE published_at IS NULL
GROUP BY topic ORDER BY oldest IS NULL, oldest, topic LIMIT :limit;

-- name: disabled
-- Topics with a disabled endpoint: an event of theirs is parked for this reason.
SELECT DISTINCT topic FROM semel_event INDEXED BY semel_event_stuck
WHERE published_at IS NULL AND tries > 0 AND parked_at IS NOT NULL AND substr(reason, 1, length(:gone)) = :gone;

-- name: depth
-- How many wait, how many are parked, and since when the oldest waits.
SELECT :now, count(*) FILTER (WHERE parked_at IS NULL), count(*) FILTER (WHERE parked_at IS NOT NULL),
    min(created_at) FILTER (WHERE parked_at IS NULL)
FROM semel_event WHERE published_at IS NULL;

-- name: sweep
-- Delete a chunk of events that were published long enough ago.
DELETE FROM semel_event WHERE seq IN (
    SELECT seq FROM semel_event WHERE published_at < :now - :keep ORDER BY published_at LIMIT :chunk
);
