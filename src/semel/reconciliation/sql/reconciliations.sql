-- Reconciliations on SQLite and MariaDB: how often reconcilers asked about an UNKNOWN record, and which one asks now.

-- name: take
-- Reserve the question if it is due and no other worker asks. A record with another fence begins anew.
UPDATE semel_reconciliation SET
    asked = CASE WHEN fence = :fence THEN asked ELSE 0 END,
    fence = :fence,
    token = :token,
    lease_until = :now + :lease_us,
    gave_up_at = NULL,
    updated_at = :now
WHERE record_id = :record_id AND lease_until <= :now
    AND (fence <> :fence OR (gave_up_at IS NULL AND next_at <= :now));

-- name: note
-- Still unknown: note when to ask again, or that asking is over.
UPDATE semel_reconciliation SET
    asked = asked + :counts,
    next_at = :now + :wait_us,
    lease_until = 0,
    gave_up_at = CASE WHEN :over = 1 THEN :now ELSE NULL END,
    reason = :reason,
    updated_at = :now
WHERE record_id = :record_id AND token = :token;

-- name: forget
-- Delete the notes on a settled record.
DELETE FROM semel_reconciliation WHERE record_id = :record_id;

-- name: sweep
-- Delete the notes on records that others have settled.
DELETE FROM semel_reconciliation
WHERE lease_until <= :now AND NOT EXISTS (
    SELECT 1 FROM semel_record AS r WHERE r.id = semel_reconciliation.record_id AND r.state = 6
);
