-- Which relay delivers which partitions of the outbox, on PostgreSQL.

-- name: attend
-- Register a relay, and until when it listens.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
INSERT INTO semel_relay AS r (holder, lease_until, bell_until)
SELECT :holder::text, now + :lease::bigint, CASE WHEN :bell::integer = 1 THEN now + :lease::bigint ELSE 0 END FROM clock
ON CONFLICT (holder) DO UPDATE SET lease_until = excluded.lease_until, bell_until = excluded.bell_until
RETURNING 1;

-- name: renew
-- Renew the partitions that a relay still holds.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
UPDATE semel_lane SET lease_until = clock.now + :lease::bigint FROM clock
WHERE holder = :holder::text AND lease_until > clock.now
RETURNING 1;

-- name: count
-- The number of relays.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
SELECT count(*) FROM semel_relay, clock WHERE lease_until > clock.now;

-- name: take
-- Take partitions whose relay is gone.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
),
free AS MATERIALIZED (
    SELECT lane FROM semel_lane WHERE lease_until <= (SELECT now FROM clock)
    ORDER BY lane LIMIT :limit::bigint FOR UPDATE SKIP LOCKED
)
UPDATE semel_lane AS l SET holder = :holder::text, fence = fence + 1, lease_until = clock.now + :lease::bigint
FROM clock, free WHERE l.lane = free.lane
RETURNING 1;

-- name: give
-- Release a partition.
UPDATE semel_lane SET lease_until = 0 WHERE holder = :holder::text AND lane = :lane::smallint
RETURNING 1;

-- name: mine
-- The partitions that a relay holds.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
SELECT lane FROM semel_lane, clock WHERE holder = :holder::text AND lease_until > clock.now ORDER BY lane;

-- name: leave
-- A relay leaves: first its partitions,
UPDATE semel_lane SET lease_until = 0 WHERE holder = :holder::text
RETURNING 1;

-- name: retire
-- A relay goes idle: it no longer counts, but still listens. A negative lease says since when.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
INSERT INTO semel_relay AS r (holder, lease_until, bell_until) SELECT :holder::text, -now, 0 FROM clock
ON CONFLICT (holder) DO UPDATE SET lease_until = excluded.lease_until
RETURNING 1;

-- name: sign_off
-- then itself.
DELETE FROM semel_relay WHERE holder = :holder::text
RETURNING 1;

-- name: forget
-- Delete relays that have been silent for long.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
DELETE FROM semel_relay USING clock WHERE greatest(abs(lease_until), bell_until) < clock.now - :silent::bigint
RETURNING 1;

-- name: registered
-- The relays that publish now, or did recently and are idle.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
SELECT holder FROM semel_relay, clock
WHERE lease_until > clock.now OR bell_until > clock.now OR (lease_until < 0 AND -lease_until > clock.now - :idle::bigint);

-- name: free
-- The number of free partitions.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
SELECT count(*) FROM semel_lane, clock WHERE lease_until <= clock.now;

-- name: call
-- Notify all listening relays of work.
SELECT pg_notify('semel_event', 'all');

-- name: turn
-- Take an idle relay's turn, also for the workers beside it: read whether any event is due (as in postgres_events.sql),
-- the outbox's depth and the relays (as `registered`). A listening relay stays registered until after its next turn.
-- include: semel.stores.postgres sql/turn.sql
turn AS MATERIALIZED (
    SELECT clock.now, coalesce((SELECT last FROM taken), :mine::bigint) AS next FROM clock
),
bell AS (
    INSERT INTO semel_relay AS r (holder, lease_until, bell_until)
    SELECT :holder::text, 0, next + 2 * :every::bigint FROM turn WHERE :bell::integer = 1
    ON CONFLICT (holder) DO UPDATE SET bell_until = excluded.bell_until
),
stuck AS MATERIALIZED (
    SELECT aggregateid, aggregatetype, min(seq) AS seq FROM semel_event, clock
    WHERE published_at IS NULL AND tries > 0
        AND (CASE WHEN parked_at IS NULL THEN next_at > clock.now ELSE :hold::integer = 1 END)
    GROUP BY aggregateid, aggregatetype
),
depth AS MATERIALIZED (
    SELECT
        count(*) FILTER (WHERE parked_at IS NULL) AS waiting, count(*) FILTER (WHERE parked_at IS NOT NULL) AS parked,
        min(created_at) FILTER (WHERE parked_at IS NULL) AS oldest
    FROM semel_event WHERE published_at IS NULL AND :gauge::integer = 1
)
SELECT
    turn.now,
    turn.next,
    records.found,
    EXISTS (
        SELECT FROM semel_event AS e
        WHERE e.published_at IS NULL AND e.parked_at IS NULL
            AND NOT EXISTS (
                SELECT FROM stuck AS s
                WHERE s.aggregateid = e.aggregateid AND s.aggregatetype = e.aggregatetype AND s.seq <= e.seq
            )
    )::integer,
    depth.waiting, depth.parked, depth.oldest,
    (
        SELECT json_agg(json_build_array(holder, greatest(lease_until, bell_until, -lease_until)))::text FROM semel_relay
        WHERE :gauge::integer = 1 AND (
            lease_until > turn.now OR bell_until > turn.now
            OR (lease_until < 0 AND -lease_until > turn.now - :idle::bigint)
        )
    )
FROM turn, records, depth;
