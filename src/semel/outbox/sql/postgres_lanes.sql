-- Which relay delivers which lanes of the outbox, on PostgreSQL.

-- name: attend
-- A relay says that it is there, and until when it listens to the bell.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
INSERT INTO semel_relay AS r (holder, lease_until, bell_until)
SELECT :holder::text, now + :lease::bigint, CASE WHEN :bell::integer = 1 THEN now + :lease::bigint ELSE 0 END FROM clock
ON CONFLICT (holder) DO UPDATE SET lease_until = excluded.lease_until, bell_until = excluded.bell_until
RETURNING 1;

-- name: renew
-- It keeps the lanes that are still its own.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
UPDATE semel_lane SET lease_until = clock.now + :lease::bigint FROM clock
WHERE holder = :holder::text AND lease_until > clock.now
RETURNING 1;

-- name: count
-- How many relays there are.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
SELECT count(*) FROM semel_relay, clock WHERE lease_until > clock.now;

-- name: take
-- Lanes that nobody holds any more.
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
-- It leaves a lane to others.
UPDATE semel_lane SET lease_until = 0 WHERE holder = :holder::text AND lane = :lane::smallint
RETURNING 1;

-- name: mine
-- The lanes it holds.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
SELECT lane FROM semel_lane, clock WHERE holder = :holder::text AND lease_until > clock.now ORDER BY lane;

-- name: leave
-- It is gone: first its lanes,
UPDATE semel_lane SET lease_until = 0 WHERE holder = :holder::text
RETURNING 1;

-- name: sign_off
-- then itself.
DELETE FROM semel_relay WHERE holder = :holder::text
RETURNING 1;

-- name: forget
-- Relays that were not heard of for long.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
DELETE FROM semel_relay USING clock WHERE lease_until < clock.now - :lease::bigint * 10
RETURNING 1;
