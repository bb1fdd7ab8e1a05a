-- The outbox on PostgreSQL: events are written by the settlement or on a user's connection; relays read and mark them.

-- name: write
-- Write events of one transaction, in order. An id that is there already is the same event: it is not written. The
-- writer notifies if a relay is listening: a NOTIFY without a listener would only make commits queue up.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
),
emitted AS (
    INSERT INTO semel_event (
        id, aggregatetype, aggregateid, type, payload, topic, headers, tenant, lane, operation_id, created_at
    )
    SELECT
        u.id::uuid, u.aggregatetype, u.aggregateid, u.type, u.payload, u.topic, u.headers, u.tenant, u.lane,
        u.operation_id, clock.now
    FROM clock, unnest(
        :event_id::text[], :aggregate_type::text[], :aggregate_id::text[], :event_type::text[], :payload::bytea[],
        :topic::text[], :event_headers::bytea[], :event_tenant::text[], :lane::smallint[], :emitter::bytea[]
    ) WITH ORDINALITY AS u (
        id, aggregatetype, aggregateid, type, payload, topic, headers, tenant, lane, operation_id, place
    )
    ORDER BY u.place
    ON CONFLICT (id) DO NOTHING
    RETURNING 1
),
rung AS (
    SELECT pg_notify('semel_event', '') FROM semel_relay, clock WHERE bell_until > clock.now LIMIT 1
)
SELECT 1 FROM emitted, (SELECT count(*) FROM rung) AS ring;

-- name: due
-- Events that may be published now, in order. A postponed or parked event blocks later ones of its aggregate.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
),
stuck AS MATERIALIZED (
    SELECT aggregateid, aggregatetype, min(seq) AS seq FROM semel_event, clock
    WHERE published_at IS NULL AND tries > 0
        AND (CASE WHEN parked_at IS NULL THEN next_at > clock.now ELSE :hold::integer = 1 END)
    GROUP BY aggregateid, aggregatetype
),
picked AS MATERIALIZED (
    SELECT e.seq, octet_length(e.payload) AS bytes FROM semel_event AS e
    WHERE e.published_at IS NULL AND e.parked_at IS NULL AND (:lanes::bigint >> e.lane) & 1 = 1
        AND NOT EXISTS (
            SELECT 1 FROM stuck AS s
            WHERE s.aggregateid = e.aggregateid AND s.aggregatetype = e.aggregatetype AND s.seq <= e.seq
        )
    ORDER BY e.seq LIMIT :limit::bigint
),
placed AS (
    SELECT seq, sum(bytes) OVER (ORDER BY seq) - bytes AS before FROM picked
)
SELECT
    e.seq, e.id::text, e.topic, e.type, e.aggregatetype, e.aggregateid,
    e.payload, e.headers, e.tenant, e.operation_id, e.created_at, e.tries
FROM placed AS p JOIN semel_event AS e ON e.seq = p.seq
WHERE p.before < :bytes::bigint
ORDER BY e.seq;

-- name: due_past
-- As `due`, without unavailable topics (",a,b,"): an event of such a topic also blocks later events of its aggregate,
-- not earlier ones. One scan over all unpublished events in each aggregate's order, whatever the planner estimates.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
),
walked AS MATERIALIZED (
    SELECT
        seq, parked_at,
        max(CASE
            WHEN position(',' || topic || ',' IN :away::text) > 0 THEN 1
            WHEN tries = 0 THEN 0
            WHEN parked_at IS NOT NULL THEN :hold::integer
            WHEN next_at > clock.now THEN 1
            ELSE 0
        END) OVER (PARTITION BY aggregateid, aggregatetype ORDER BY seq) AS stopped
    FROM semel_event, clock WHERE published_at IS NULL AND (:lanes::bigint >> lane) & 1 = 1
),
picked AS (
    SELECT w.seq, octet_length(e.payload) AS bytes FROM walked AS w JOIN semel_event AS e ON e.seq = w.seq
    WHERE w.stopped = 0 AND w.parked_at IS NULL
    ORDER BY w.seq LIMIT :limit::bigint
),
placed AS (
    SELECT seq, sum(bytes) OVER (ORDER BY seq) - bytes AS before FROM picked
)
SELECT
    e.seq, e.id::text, e.topic, e.type, e.aggregatetype, e.aggregateid,
    e.payload, e.headers, e.tenant, e.operation_id, e.created_at, e.tries
FROM placed AS p JOIN semel_event AS e ON e.seq = p.seq
WHERE p.before < :bytes::bigint
ORDER BY e.seq;

-- name: published
-- The broker has them.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
UPDATE semel_event SET published_at = clock.now FROM clock
WHERE seq = ANY (:seq::bigint[]) AND published_at IS NULL
RETURNING 1;

-- name: postpone
-- The broker refused an event: it is retried later, and later events of its aggregate wait.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
UPDATE semel_event SET tries = tries + 1, reason = :reason::text, next_at = clock.now + :wait::bigint FROM clock
WHERE seq = :seq::bigint AND published_at IS NULL AND parked_at IS NULL
RETURNING 1;

-- name: park
-- Park an event: no relay tries it again until an operator retries it.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
UPDATE semel_event SET tries = tries + 1, reason = :reason::text, parked_at = clock.now FROM clock
WHERE id = :id::text::uuid AND published_at IS NULL AND parked_at IS NULL
RETURNING 1;

-- name: park_row
-- The same, by place.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
UPDATE semel_event SET tries = tries + 1, reason = :reason::text, parked_at = clock.now FROM clock
WHERE seq = :seq::bigint AND published_at IS NULL AND parked_at IS NULL
RETURNING 1;

-- name: retry
-- Retry a parked event, with all its tries again.
UPDATE semel_event SET tries = 0, next_at = 0, parked_at = NULL
WHERE id = :id::text::uuid AND published_at IS NULL AND parked_at IS NOT NULL
RETURNING 1;

-- name: retry_row
-- The same, by place.
UPDATE semel_event SET tries = 0, next_at = 0, parked_at = NULL
WHERE seq = :seq::bigint AND published_at IS NULL AND parked_at IS NOT NULL
RETURNING 1;

-- name: drop
-- Drop a parked event: it is never published.
DELETE FROM semel_event WHERE id = :id::text::uuid AND published_at IS NULL AND parked_at IS NOT NULL
RETURNING 1;

-- name: drop_row
-- The same, by place.
DELETE FROM semel_event WHERE seq = :seq::bigint AND published_at IS NULL AND parked_at IS NOT NULL
RETURNING 1;

-- name: find
-- A page of unpublished events, oldest first: all or only parked ones, of all topics or of one.
SELECT
    e.seq, e.id::text, e.topic, e.type, e.aggregatetype, e.aggregateid,
    e.payload, e.headers, e.tenant, e.operation_id, e.created_at, e.tries,
    e.next_at, e.parked_at, e.reason
FROM semel_event AS e
WHERE e.published_at IS NULL AND e.seq > :after::bigint
    AND (:parked::integer = 0 OR (e.parked_at IS NOT NULL AND e.tries > 0))
    AND (:topic::text IS NULL OR e.topic = :topic::text)
ORDER BY e.seq LIMIT :limit::bigint;

-- name: places
-- A page of all events, oldest first, without their payloads.
SELECT e.seq, e.id::text, e.topic, e.aggregatetype, e.aggregateid, e.created_at
FROM semel_event AS e WHERE e.seq > :after::bigint ORDER BY e.seq LIMIT :limit::bigint;

-- name: past
-- A page of published events that are still stored, oldest first.
SELECT
    e.seq, e.id::text, e.topic, e.type, e.aggregatetype, e.aggregateid,
    e.payload, e.headers, e.tenant, e.operation_id, e.created_at, e.tries
FROM semel_event AS e WHERE e.published_at IS NOT NULL AND e.seq > :after::bigint ORDER BY e.seq LIMIT :limit::bigint;

-- name: topics
-- Waiting and parked events by topic, and since when the oldest waits; the topic that waits longest first.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
SELECT
    clock.now, e.topic, count(*) FILTER (WHERE e.parked_at IS NULL), count(*) FILTER (WHERE e.parked_at IS NOT NULL),
    min(e.created_at) FILTER (WHERE e.parked_at IS NULL)
FROM semel_event AS e, clock WHERE e.published_at IS NULL
GROUP BY clock.now, e.topic ORDER BY 5 NULLS LAST, e.topic LIMIT :limit::bigint;

-- name: disabled
-- Topics with a disabled endpoint: an event of theirs is parked for this reason.
SELECT DISTINCT topic FROM semel_event
WHERE published_at IS NULL AND tries > 0 AND parked_at IS NOT NULL AND starts_with(reason, :gone::text);

-- name: depth
-- How many wait, how many are parked, and since when the oldest waits.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
SELECT
    (SELECT now FROM clock),
    count(*) FILTER (WHERE parked_at IS NULL), count(*) FILTER (WHERE parked_at IS NOT NULL),
    min(created_at) FILTER (WHERE parked_at IS NULL)
FROM semel_event WHERE published_at IS NULL;

-- name: sweep
-- Delete a chunk of events that were published long enough ago.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
DELETE FROM semel_event WHERE seq IN (
    SELECT seq FROM semel_event
    WHERE published_at < (SELECT now FROM clock) - :keep::bigint
    ORDER BY published_at LIMIT :chunk::bigint
)
RETURNING 1;
