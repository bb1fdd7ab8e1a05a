-- Which relay delivers which partitions of the outbox, on SQLite and MariaDB.

-- name: renew
-- Renew the partitions that a relay still holds.
UPDATE semel_lane SET lease_until = :now + :lease WHERE holder = :holder AND lease_until > :now;

-- name: count
-- The number of relays.
SELECT COUNT(*) FROM semel_relay WHERE lease_until > :now;

-- name: give
-- Release a partition.
UPDATE semel_lane SET lease_until = 0 WHERE holder = :holder AND lane = :lane;

-- name: mine
-- The partitions that a relay holds.
SELECT lane FROM semel_lane WHERE holder = :holder AND lease_until > :now ORDER BY lane;

-- name: leave
-- A relay leaves: first its partitions,
UPDATE semel_lane SET lease_until = 0 WHERE holder = :holder;

-- name: sign_off
-- then itself.
DELETE FROM semel_relay WHERE holder = :holder;

-- name: forget
-- Delete relays that have been silent for long.
DELETE FROM semel_relay WHERE ABS(lease_until) < :now - :silent;

-- name: registered
-- The relays that publish now, or did recently and are idle.
SELECT holder FROM semel_relay
WHERE lease_until > :now OR bell_until > :now OR (lease_until < 0 AND -lease_until > :now - :idle);

-- name: free
-- The number of free partitions.
SELECT COUNT(*) FROM semel_lane WHERE lease_until <= :now;
