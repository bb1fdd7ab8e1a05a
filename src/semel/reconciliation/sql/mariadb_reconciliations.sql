-- Reconciliations on MariaDB: how often reconcilers asked about an UNKNOWN record, and which one asks now.
-- What SQLite and MariaDB share is in reconciliations.sql.

-- name: standing
-- The state of these records' reconciliation; the time first.
SELECT :now, record_id, fence, asked, next_at, lease_until, gave_up_at, reason
FROM semel_reconciliation
WHERE record_id IN :record_ids;

-- name: seed
-- Add a record that no reconciler has asked about.
INSERT IGNORE INTO semel_reconciliation (record_id, fence, asked, next_at, token, lease_until, reason, updated_at)
VALUES (:record_id, :fence, 0, 0, :token, 0, '', :now);
