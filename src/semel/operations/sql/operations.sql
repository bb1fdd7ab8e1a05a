-- Operations on SQLite and MariaDB: executions, which outlive their keys, and the owners of business references. Each
-- statement is in the transaction of the claim, or of the record's settlement.

-- name: holder
-- The operation that holds a reference, and the time to decide by.
SELECT
    :now, operation_id, record_id, tenant, caller, operation, business_ref, state, resource_type, resource_id, error_code,
    created_at, settled_at, forget_after
FROM semel_operation
WHERE holds = :ref_id;

-- name: by_id
-- One operation, and the time.
SELECT
    :now, operation_id, record_id, tenant, caller, operation, business_ref, state, resource_type, resource_id, error_code,
    created_at, settled_at, forget_after
FROM semel_operation
WHERE operation_id = :operation_id;

-- name: by_ref
-- The operation of a reference: the one that holds it, or else the newest that had it.
SELECT
    :now, operation_id, record_id, tenant, caller, operation, business_ref, state, resource_type, resource_id, error_code,
    created_at, settled_at, forget_after
FROM semel_operation
WHERE ref_id = :ref_id
ORDER BY holds IS NULL, operation_id DESC
LIMIT 1;

-- name: by_record
-- The newest operation of a record that may be gone.
SELECT
    :now, operation_id, record_id, tenant, caller, operation, business_ref, state, resource_type, resource_id, error_code,
    created_at, settled_at, forget_after
FROM semel_operation
WHERE record_id = :record_id
ORDER BY operation_id DESC
LIMIT 1;

-- name: window
-- One chunk of the purge's walk, in order of creation.
SELECT operation_id, forget_after IS NOT NULL AND forget_after + :grace <= :now
FROM semel_operation
WHERE operation_id > :after
ORDER BY operation_id
LIMIT :chunk;

-- name: forget
-- Forget an expired operation. Open and unknown ones never expire.
DELETE FROM semel_operation
WHERE operation_id = :operation_id AND forget_after + :grace <= :now;
