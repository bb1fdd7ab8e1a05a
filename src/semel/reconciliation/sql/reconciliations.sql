-- Reconciliations on SQLite and MariaDB: how often it was asked what became of an UNKNOWN record, and who asks now.

-- name: take
-- Ask about it, alone: nobody else is asking, and it is due. A record with another fence is another story.
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
-- It is still unknown: when to ask again, or that nobody will.
UPDATE semel_reconciliation SET
    asked = asked + :counts,
    next_at = :now + :wait_us,
    lease_until = 0,
    gave_up_at = CASE WHEN :over = 1 THEN :now ELSE NULL END,
    reason = :reason,
    updated_at = :now
WHERE record_id = :record_id AND token = :token;

-- name: forget
-- It is settled.
DELETE FROM semel_reconciliation WHERE record_id = :record_id;

-- name: sweep
-- What others have settled.
DELETE FROM semel_reconciliation
WHERE lease_until <= :now AND NOT EXISTS (
    SELECT 1 FROM semel_record AS r WHERE r.id = semel_reconciliation.record_id AND r.state = 6
);
