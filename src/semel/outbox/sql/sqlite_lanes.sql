-- Which relay delivers which lanes of the outbox, on SQLite.

-- name: attend
-- A relay says that it is there.
INSERT INTO semel_relay (holder, lease_until, bell_until)
VALUES (:holder, :now + :lease, CASE WHEN :bell = 1 THEN :now + :lease ELSE 0 END)
ON CONFLICT (holder) DO UPDATE SET lease_until = excluded.lease_until, bell_until = excluded.bell_until;

-- name: renew
-- It keeps the lanes that are still its own.
UPDATE semel_lane SET lease_until = :now + :lease WHERE holder = :holder AND lease_until > :now;

-- name: count
-- How many relays there are.
SELECT COUNT(*) FROM semel_relay WHERE lease_until > :now;

-- name: take
-- Lanes that nobody holds any more.
UPDATE semel_lane SET holder = :holder, fence = fence + 1, lease_until = :now + :lease
WHERE lane IN (SELECT lane FROM semel_lane WHERE lease_until <= :now ORDER BY lane LIMIT :limit);

-- name: give
-- It leaves a lane to others.
UPDATE semel_lane SET lease_until = 0 WHERE holder = :holder AND lane = :lane;

-- name: mine
-- The lanes it holds.
SELECT lane FROM semel_lane WHERE holder = :holder AND lease_until > :now ORDER BY lane;

-- name: leave
-- It is gone: first its lanes,
UPDATE semel_lane SET lease_until = 0 WHERE holder = :holder;

-- name: sign_off
-- then itself.
DELETE FROM semel_relay WHERE holder = :holder;

-- name: forget
-- Relays that were not heard of for long.
DELETE FROM semel_relay WHERE lease_until < :now - :lease * 10;
