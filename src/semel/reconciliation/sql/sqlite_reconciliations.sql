-- Reconciliations on SQLite: how often it was asked what became of an UNKNOWN record, and who asks now.
-- What SQLite and MariaDB share is in reconciliations.sql.

-- name: standing
-- What is known of these records; the time first.
SELECT :now, record_id, fence, asked, next_at, lease_until, gave_up_at, reason
FROM semel_reconciliation
WHERE record_id = :record_id;

-- name: seed
-- A record that nobody has asked about.
INSERT OR IGNORE INTO semel_reconciliation (record_id, fence, asked, next_at, token, lease_until, reason, updated_at)
VALUES (:record_id, :fence, 0, 0, :token, 0, '', :now);
