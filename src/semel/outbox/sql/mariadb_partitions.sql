-- Which relay delivers which partitions of the outbox, on MariaDB.
-- What SQLite and MariaDB share is in partitions.sql.

-- name: attend
-- Register a relay.
INSERT INTO semel_relay (holder, lease_until, bell_until)
VALUES (:holder, :now + :lease, CASE WHEN :bell = 1 THEN :now + :lease ELSE 0 END)
ON DUPLICATE KEY UPDATE lease_until = VALUES(lease_until), bell_until = VALUES(bell_until);

-- name: retire
-- A relay goes idle: it no longer counts. A negative lease says since when.
INSERT INTO semel_relay (holder, lease_until, bell_until) VALUES (:holder, -:now, 0)
ON DUPLICATE KEY UPDATE lease_until = VALUES(lease_until);

-- name: take
-- Take partitions whose relay is gone.
UPDATE semel_lane SET holder = :holder, fence = fence + 1, lease_until = :now + :lease
WHERE lease_until <= :now ORDER BY lane LIMIT :limit;

-- name: turn
-- Take an idle relay's turn, also for the workers beside it: read whether any event is due (as in mariadb_events.sql),
-- the outbox's depth and the relays (as `registered` in partitions.sql).
-- include: semel.stores.mariadb sql/turn.sql
    , EXISTS (
        SELECT 1 FROM semel_event AS e
        WHERE e.published_at IS NULL AND e.parked_at IS NULL
            AND NOT EXISTS (
                SELECT 1 FROM semel_event AS s
                WHERE s.published_at IS NULL AND s.tries > 0 AND s.aggregateid = e.aggregateid
                    AND s.aggregatetype = e.aggregatetype AND s.seq <= e.seq
                    AND CASE WHEN s.parked_at IS NULL THEN s.next_at > :now ELSE :hold = 1 END
            )
    ),
    (SELECT COUNT(*) FROM semel_event WHERE published_at IS NULL AND parked_at IS NULL AND :gauge = 1),
    (SELECT COUNT(*) FROM semel_event WHERE published_at IS NULL AND parked_at IS NOT NULL AND :gauge = 1),
    (SELECT MIN(created_at) FROM semel_event WHERE published_at IS NULL AND parked_at IS NULL AND :gauge = 1),
    (
        SELECT JSON_ARRAYAGG(JSON_ARRAY(holder, GREATEST(lease_until, bell_until, -lease_until))) FROM semel_relay
        WHERE :gauge = 1 AND (lease_until > :now OR bell_until > :now OR (lease_until < 0 AND -lease_until > :now - :idle))
    );
