-- Operations on MariaDB: executions, which outlive their keys, and the owners of business references. Each statement is
-- in the transaction of the claim, or of the record's settlement.
-- What SQLite and MariaDB share is in operations.sql.

-- name: keep
-- Write a new operation. Returns the existing one: its own, or the one that holds its reference, whose lock the
-- statement waits for :wait seconds.
SET STATEMENT innodb_lock_wait_timeout = :wait, sql_mode = 'STRICT_ALL_TABLES' FOR
INSERT INTO semel_operation (
    operation_id, record_id, tenant, caller, operation, business_ref, ref_id, holds, state, keep_us, created_at
) VALUES (
    :operation_id, :record_id, :tenant, :caller, :operation, :business_ref, :ref_id, :ref_id, :state, :keep_us, :now
)
ON DUPLICATE KEY UPDATE operation_id = semel_operation.operation_id
RETURNING operation_id;

-- name: reopen
-- The record was granted again: take the reference back, unless another operation holds it by now.
UPDATE IGNORE semel_operation SET
    state = :state, holds = ref_id, error_code = NULL, settled_at = NULL, forget_after = NULL, keep_us = :keep_us
WHERE operation_id = :operation_id;

-- name: mirror
-- Copy a record's current outcome to its operation. An outcome that proves that no effect remains frees the reference.
UPDATE semel_operation AS o JOIN semel_record AS r ON r.operation_id = o.operation_id SET
    o.state = r.state, o.resource_type = r.resource_type, o.resource_id = r.resource_id, o.settled_at = r.settled_at,
    o.error_code = CASE r.state
        WHEN 3 THEN NULL WHEN 4 THEN COALESCE(r.error_code, CONCAT('http-', r.status))
        ELSE COALESCE(r.error_code, r.doubt)
    END,
    o.forget_after = GREATEST(r.settled_at + o.keep_us, r.forget_after),
    o.holds = CASE WHEN r.state IN (4, 5) THEN NULL ELSE o.holds END
WHERE r.id = :id;
