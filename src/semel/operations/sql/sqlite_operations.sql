-- Operations on SQLite: executions, which outlive their keys, and the owners of business references. Each statement is
-- in the transaction of the claim, or of the record's settlement.
-- What SQLite and MariaDB share is in operations.sql.

-- name: keep
-- Write a new operation; nothing if it exists already, or another one holds its reference.
INSERT OR IGNORE INTO semel_operation (
    operation_id, record_id, tenant, caller, operation, business_ref, ref_id, holds, state, keep_us, created_at
) VALUES (
    :operation_id, :record_id, :tenant, :caller, :operation, :business_ref, :ref_id, :ref_id, :state, :keep_us, :now
);

-- name: reopen
-- The record was granted again: take the reference back, unless another operation holds it by now.
UPDATE OR IGNORE semel_operation SET
    state = :state, holds = ref_id, error_code = NULL, settled_at = NULL, forget_after = NULL, keep_us = :keep_us
WHERE operation_id = :operation_id;

-- name: mirror
-- Copy a record's current outcome to its operation. An outcome that proves that no effect remains frees the reference.
UPDATE semel_operation SET
    state = r.state, resource_type = r.resource_type, resource_id = r.resource_id, settled_at = r.settled_at,
    error_code = CASE r.state
        WHEN 3 THEN NULL WHEN 4 THEN coalesce(r.error_code, 'http-' || r.status) ELSE coalesce(r.error_code, r.doubt)
    END,
    forget_after = max(r.settled_at + keep_us, r.forget_after),
    holds = CASE WHEN r.state IN (4, 5) THEN NULL ELSE holds END
FROM semel_record AS r
WHERE r.id = :id AND semel_operation.operation_id = r.operation_id;
