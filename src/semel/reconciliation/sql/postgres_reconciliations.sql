-- Reconciliations on PostgreSQL: how often reconcilers asked about an UNKNOWN record, and which one asks now.

-- name: standing
-- The state of these records' reconciliation; the time first.
SELECT
    coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint),
    record_id, fence, asked, next_at, lease_until, gave_up_at, reason
FROM semel_reconciliation
WHERE record_id = ANY(:record_ids::bytea[]);

-- name: seed
-- Add a record that no reconciler has asked about.
INSERT INTO semel_reconciliation (record_id, fence, asked, next_at, token, lease_until, reason, updated_at)
VALUES (
    :record_id::bytea, :fence::bigint, 0, 0, :token::bytea, 0, '',
    coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
)
ON CONFLICT DO NOTHING
RETURNING 1;

-- name: take
-- Reserve the question if it is due and no other worker asks. A record with another fence begins anew.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
UPDATE semel_reconciliation SET
    asked = CASE WHEN fence = :fence::bigint THEN asked ELSE 0 END,
    fence = :fence::bigint,
    token = :token::bytea,
    lease_until = clock.now + :lease_us::bigint,
    gave_up_at = NULL,
    updated_at = clock.now
FROM clock
WHERE record_id = :record_id::bytea AND lease_until <= clock.now
    AND (fence <> :fence::bigint OR (gave_up_at IS NULL AND next_at <= clock.now))
RETURNING 1;

-- name: note
-- Still unknown: note when to ask again, or that asking is over.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
UPDATE semel_reconciliation SET
    asked = asked + :counts::integer,
    next_at = clock.now + :wait_us::bigint,
    lease_until = 0,
    gave_up_at = CASE WHEN :over::integer = 1 THEN clock.now END,
    reason = :reason::text,
    updated_at = clock.now
FROM clock
WHERE record_id = :record_id::bytea AND token = :token::bytea
RETURNING 1;

-- name: forget
-- Delete the notes on a settled record.
DELETE FROM semel_reconciliation WHERE record_id = :record_id::bytea RETURNING 1;

-- name: sweep
-- Delete the notes on records that others have settled.
DELETE FROM semel_reconciliation
WHERE lease_until <= coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
    AND NOT EXISTS (
        SELECT FROM semel_record AS r WHERE r.id = semel_reconciliation.record_id AND r.state = 6
    )
RETURNING 1;
