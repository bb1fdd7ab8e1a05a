-- Every statement of the MariaDB store, by name. Values are always parameters, which the driver writes as literals. The
-- driver supplies :now: the server's own clock, or microseconds if a test sets it. Batches are sorted by id, so that
-- any two take their locks in the same order. A holder's write names fence and nonce; every list has a limit and an
-- order.

-- name: claim
-- Reserve a new key, or return its record, in one statement that reads nothing before it writes. It waits :wait seconds
-- for the record's lock; 0 if an ATOMIC unit may hold it for any time. It is strict whatever the session's mode: a text
-- that is too long is an error, not truncated.
SET STATEMENT innodb_lock_wait_timeout = :wait, sql_mode = 'STRICT_ALL_TABLES' FOR
INSERT INTO semel_record (
    id, format, tenant, caller, operation, key_hash, recipe, fingerprint, state, effects, fence, nonce, holder, attempt,
    lapses, generation, operation_id, created_at, first_started_at, lease_until, deadline_at, dedup_until, lease_us,
    attempts_max, answer_us, tombstone_us, after_expiry, answer_kind
) VALUES (
    :id, 1, :tenant, :caller, :operation, :key_hash, :recipe, :fingerprint, :state, :effects, :now, :nonce, :holder, 1,
    0, 0, :operation_id, :now, :now, :now + LEAST(:lease_us, :deadline_us), :now + :deadline_us, :now + :dedup_us,
    :lease_us, :attempts_max, :answer_us, :tombstone_us, :after_expiry, 0
)
ON DUPLICATE KEY UPDATE id = id
RETURNING
    :now, id, format, tenant, caller, operation, key_hash, recipe, fingerprint, state, effects, fence, nonce, holder, attempt,
    lapses, generation, operation_id, created_at, first_started_at, lease_until, deadline_at, dedup_until, lease_us,
    attempts_max, answer_us, tombstone_us, after_expiry, settled_at, answer_until, forget_after, doubt, business_ref,
    resource_type, resource_id, error_code, answer_kind, answer_digest, sealing_key_id, status, headers, request, body;

-- name: look
-- The records of these ids, and the time to decide by. Takes no lock.
SELECT
    :now, id, format, tenant, caller, operation, key_hash, recipe, fingerprint, state, effects, fence, nonce, holder, attempt,
    lapses, generation, operation_id, created_at, first_started_at, lease_until, deadline_at, dedup_until, lease_us,
    attempts_max, answer_us, tombstone_us, after_expiry, settled_at, answer_until, forget_after, doubt, business_ref,
    resource_type, resource_id, error_code, answer_kind, answer_digest, sealing_key_id, status, headers, request, body
FROM semel_record
WHERE id IN :ids;

-- name: look_kept
-- The columns that a replay needs of these records (core/decide.KEPT_COLUMNS), the time, and whether the times are
-- valid. core/record.is_sound also checks the columns' types, which the table ensures here. Takes no lock. No row if
-- the server has another store by now.
SELECT
    :now,
    (fence | created_at | first_started_at | lease_until | deadline_at | dedup_until | COALESCE(settled_at, 0)
        | COALESCE(answer_until, 0)) >> 57 = 0,
    fingerprint, recipe, answer_kind, id, format, state, answer_until, operation_id, answer_digest, status, headers, body
FROM semel_record
WHERE id IN :ids AND (:store IS NULL OR :store = (SELECT store_id FROM semel_meta WHERE one = 1));

-- name: read_operations
-- The whole records of these operation ids.
SELECT
    :now, id, format, tenant, caller, operation, key_hash, recipe, fingerprint, state, effects, fence, nonce, holder, attempt,
    lapses, generation, operation_id, created_at, first_started_at, lease_until, deadline_at, dedup_until, lease_us,
    attempts_max, answer_us, tombstone_us, after_expiry, settled_at, answer_until, forget_after, doubt, business_ref,
    resource_type, resource_id, error_code, answer_kind, answer_digest, sealing_key_id, status, headers, request, body
FROM semel_record
WHERE operation_id IN :ids
ORDER BY seq;

-- name: settle
-- Settle the holder's open record. Finds no row if the fence or nonce is no longer the record's, or the record is no
-- longer open: then read it and decide.
UPDATE semel_record SET
    state = :state,
    settled_at = :now,
    answer_until = :now + answer_us,
    forget_after = :now + GREATEST(answer_us, tombstone_us),
    doubt = :doubt,
    error_code = :error_code,
    business_ref = :business_ref,
    resource_type = :resource_type,
    resource_id = :resource_id,
    answer_kind = :answer_kind,
    answer_digest = :answer_digest,
    status = :status,
    headers = :headers,
    request = NULL,
    body = :body
WHERE id = :id AND fence = :fence AND nonce = :nonce AND state IN (1, 2) AND lease_until > 0;

-- name: write_record
-- Replace every column that may change, by compare-and-set on the version that was read, and on its list of steps if
-- the grant depends on it (empty: none).
UPDATE semel_record SET
    recipe = :recipe, fingerprint = :fingerprint, state = :state, effects = :effects, fence = :fence, nonce = :nonce,
    holder = :holder, attempt = :attempt, lapses = :lapses, generation = :generation, operation_id = :operation_id,
    created_at = :created_at, first_started_at = :first_started_at, lease_until = :lease_until,
    deadline_at = :deadline_at, dedup_until = :dedup_until, lease_us = :lease_us, attempts_max = :attempts_max,
    answer_us = :answer_us, tombstone_us = :tombstone_us, after_expiry = :after_expiry, settled_at = :settled_at,
    answer_until = :answer_until, forget_after = :forget_after, doubt = :doubt, business_ref = :business_ref,
    resource_type = :resource_type, resource_id = :resource_id, error_code = :error_code, answer_kind = :answer_kind,
    answer_digest = :answer_digest, sealing_key_id = :sealing_key_id, status = :status, headers = :headers,
    request = :request, body = :body
WHERE id = :id AND fence = :seen_fence AND nonce = :seen_nonce AND state = :seen_state
    AND lease_until = :seen_lease_until AND answer_kind = :seen_answer_kind AND doubt <=> :seen_doubt
    AND (:seen_steps IS NULL OR COALESCE(steps, '') = :seen_steps);

-- name: raise_attention
-- List a record that became UNKNOWN for operators. It is a hint: the record's own state is the truth.
INSERT INTO semel_attention (id) VALUES (:id) ON DUPLICATE KEY UPDATE id = id;

-- name: write_audit
-- One line of the audit trail, in the transaction of the change that it describes.
INSERT INTO semel_audit (at, record_id, actor, action, reason, fence)
VALUES (:at, :record_id, :actor, :action, :reason, :fence);
