-- Operations on PostgreSQL: executions, which outlive their keys, and the owners of business references. Each statement
-- is in the transaction of the claim, or of the record's settlement. :now as in records.sql.

-- name: lock
-- Try the lock of a reference's holder, and never wait: an ATOMIC unit may keep it for as long as it runs. It is a
-- separate statement, so that the next one sees the commit of the lock's former owner.
SELECT pg_try_advisory_xact_lock(:lock::bigint # ('semel_operation'::regclass::oid::bigint << 32))::integer;

-- name: keep
-- Write a new operation; nothing if it exists already, or another one holds its reference.
INSERT INTO semel_operation (
    operation_id, record_id, tenant, caller, operation, business_ref, ref_id, holds, state, keep_us, created_at
) VALUES (
    :operation_id::bytea, :record_id::bytea, :tenant::text, :caller::text, :operation::text, :business_ref::text,
    :ref_id::bytea, :ref_id::bytea, :state::smallint, :keep_us::bigint,
    coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
)
ON CONFLICT DO NOTHING
RETURNING 1;

-- name: reopen
-- The record was granted again: take the reference back, unless another operation holds it by now. This transaction has
-- the lock, so no other can take the reference between the look and the write.
UPDATE semel_operation SET
    state = :state::smallint, holds = ref_id, error_code = NULL, settled_at = NULL, forget_after = NULL,
    keep_us = :keep_us::bigint
WHERE operation_id = :operation_id::bytea
    AND NOT EXISTS (
        SELECT FROM semel_operation AS other
        WHERE other.holds = :ref_id::bytea AND other.operation_id <> :operation_id::bytea
    )
RETURNING 1;

-- name: holder
-- The operation that holds a reference, and the time to decide by.
SELECT
    coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint), operation_id, record_id, tenant,
    caller, operation, business_ref, state, resource_type, resource_id, error_code, created_at, settled_at, forget_after
FROM semel_operation
WHERE holds = :ref_id::bytea;

-- name: mirror
-- Copy a record's current outcome to its operation. An outcome that proves that no effect remains frees the reference.
UPDATE semel_operation AS o SET
    state = r.state, resource_type = r.resource_type, resource_id = r.resource_id, settled_at = r.settled_at,
    error_code = CASE r.state
        WHEN 3 THEN NULL WHEN 4 THEN coalesce(r.error_code, 'http-' || r.status) ELSE coalesce(r.error_code, r.doubt)
    END,
    forget_after = CASE WHEN r.settled_at IS NULL THEN NULL ELSE greatest(r.settled_at + o.keep_us, r.forget_after) END,
    holds = CASE WHEN r.state IN (4, 5) THEN NULL ELSE o.holds END
FROM semel_record AS r
WHERE r.id = ANY(:id::bytea[]) AND o.operation_id = r.operation_id
RETURNING 1;

-- name: conclude
-- An ATOMIC unit's success, before the settle that commits it.
WITH clock AS MATERIALIZED (SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now)
UPDATE semel_operation SET
    state = 3, resource_type = :resource_type::text, resource_id = :resource_id::text, settled_at = clock.now,
    forget_after = clock.now + keep_us
FROM clock
WHERE operation_id = :operation_id::bytea
RETURNING 1;

-- name: by_id
-- One operation, and the time.
SELECT
    coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint), operation_id, record_id, tenant,
    caller, operation, business_ref, state, resource_type, resource_id, error_code, created_at, settled_at, forget_after
FROM semel_operation
WHERE operation_id = :operation_id::bytea;

-- name: by_ref
-- The operation of a reference: the one that holds it, or else the newest that had it.
SELECT
    coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint), operation_id, record_id, tenant,
    caller, operation, business_ref, state, resource_type, resource_id, error_code, created_at, settled_at, forget_after
FROM semel_operation
WHERE ref_id = :ref_id::bytea
ORDER BY holds IS NULL, operation_id DESC
LIMIT 1;

-- name: by_record
-- The newest operation of a record that may be gone.
SELECT
    coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint), operation_id, record_id, tenant,
    caller, operation, business_ref, state, resource_type, resource_id, error_code, created_at, settled_at, forget_after
FROM semel_operation
WHERE record_id = :record_id::bytea
ORDER BY operation_id DESC
LIMIT 1;

-- name: window
-- One chunk of the purge's walk, in order of creation.
SELECT
    operation_id,
    (forget_after IS NOT NULL AND forget_after + :grace::bigint <=
        coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint))::integer
FROM semel_operation
WHERE operation_id > :after::bytea
ORDER BY operation_id
LIMIT :chunk::bigint;

-- name: forget
-- Forget expired operations. Open and unknown ones never expire.
DELETE FROM semel_operation
WHERE operation_id = ANY(:operation_id::bytea[]) AND forget_after + (:grace::bigint[])[1] <=
    coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
RETURNING 1;
