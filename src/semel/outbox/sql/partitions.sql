-- Which relay delivers which partitions of the outbox, on SQLite and MariaDB.

-- name: renew
-- It keeps the partitions that are still its own.
UPDATE semel_lane SET lease_until = :now + :lease WHERE holder = :holder AND lease_until > :now;

-- name: count
-- How many relays there are.
SELECT COUNT(*) FROM semel_relay WHERE lease_until > :now;

-- name: give
-- It leaves a partition to others.
UPDATE semel_lane SET lease_until = 0 WHERE holder = :holder AND lane = :lane;

-- name: mine
-- The partitions it holds.
SELECT lane FROM semel_lane WHERE holder = :holder AND lease_until > :now ORDER BY lane;

-- name: leave
-- It is gone: first its partitions,
UPDATE semel_lane SET lease_until = 0 WHERE holder = :holder;

-- name: sign_off
-- then itself.
DELETE FROM semel_relay WHERE holder = :holder;

-- name: forget
-- Relays that were not heard of for long.
DELETE FROM semel_relay WHERE ABS(lease_until) < :now - :silent;

-- name: registered
-- The relays that publish, or were at it a while ago, and now wait for events.
SELECT holder FROM semel_relay
WHERE lease_until > :now OR bell_until > :now OR (lease_until < 0 AND -lease_until > :now - :idle);

-- name: free
-- How many partitions are free.
SELECT COUNT(*) FROM semel_lane WHERE lease_until <= :now;
