-- Every statement of the SQLite store, by name. Values are always parameters; every write of a
-- holder names the version of the row that it saw, fence and nonce first; every list has a limit and an order.
-- SQLite uses a partial index only if a statement repeats its condition. The index of open records has one of two
-- conditions: see migrations/0001_first.sql. `state = 2` implies the second one.

-- name: read_record
-- The whole record of one id, columns in the order of model.Record.
SELECT
    id, format, tenant, caller, operation, key_hash, recipe, fingerprint, state, effects, fence, nonce,
    holder, attempt, lapses, generation, operation_id, created_at, first_started_at, lease_until,
    deadline_at, dedup_until, lease_us, attempts_max, answer_us, tombstone_us, after_expiry, settled_at,
    answer_until, forget_after, doubt, business_ref, resource_type, resource_id, error_code, answer_kind,
    answer_digest, sealing_key_id, status, headers, request, body
FROM semel_record
WHERE id = :id;

-- name: find_kept_answer
-- The columns that a replay needs of one record. The last column is NULL if any column has an invalid value, by the
-- rules of core/record.is_sound; otherwise it holds the texts that are not selected, so that its reader decodes them.
-- It has a short name because Python's sqlite3 decodes each column's name at each execution, and without one the name
-- is the whole expression.
SELECT
    fingerprint, recipe, answer_kind, id, format, state, answer_until, operation_id, answer_digest, status,
    headers, body,
    CASE WHEN
        typeof(id) = 'blob' AND typeof(format) = 'integer' AND typeof(tenant) = 'text'
        AND typeof(caller) = 'text' AND typeof(operation) = 'text' AND typeof(key_hash) = 'blob'
        AND typeof(recipe) = 'text' AND typeof(fingerprint) = 'blob' AND typeof(state) = 'integer'
        AND typeof(effects) = 'integer' AND typeof(fence) = 'integer' AND typeof(nonce) = 'blob'
        AND typeof(holder) = 'text' AND typeof(attempt) = 'integer' AND typeof(lapses) = 'integer'
        AND typeof(generation) = 'integer' AND typeof(operation_id) = 'blob'
        AND typeof(created_at) = 'integer' AND typeof(first_started_at) = 'integer'
        AND typeof(lease_until) = 'integer' AND typeof(deadline_at) = 'integer'
        AND typeof(dedup_until) = 'integer' AND typeof(lease_us) = 'integer'
        AND typeof(attempts_max) = 'integer' AND typeof(answer_us) = 'integer'
        AND typeof(tombstone_us) = 'integer' AND typeof(after_expiry) = 'integer'
        AND (settled_at IS NULL OR typeof(settled_at) = 'integer')
        AND (answer_until IS NULL OR typeof(answer_until) = 'integer')
        AND (forget_after IS NULL OR typeof(forget_after) = 'integer')
        AND (doubt IS NULL OR typeof(doubt) = 'text')
        AND (business_ref IS NULL OR typeof(business_ref) = 'text')
        AND (resource_type IS NULL OR typeof(resource_type) = 'text')
        AND (resource_id IS NULL OR typeof(resource_id) = 'text')
        AND (error_code IS NULL OR typeof(error_code) = 'text') AND typeof(answer_kind) = 'integer'
        AND (answer_digest IS NULL OR typeof(answer_digest) = 'blob')
        AND (sealing_key_id IS NULL OR typeof(sealing_key_id) = 'text')
        AND (status IS NULL OR typeof(status) = 'integer') AND (headers IS NULL OR typeof(headers) = 'blob')
        AND (request IS NULL OR typeof(request) = 'blob') AND (body IS NULL OR typeof(body) = 'blob')
        AND (fence | created_at | first_started_at | lease_until
            | deadline_at | dedup_until | coalesce(settled_at, 0) | coalesce(answer_until, 0)) >> 57 = 0
    THEN
        CASE WHEN coalesce(doubt, business_ref, resource_type, resource_id, error_code, sealing_key_id) IS NULL
        THEN tenant || ' ' || caller || ' ' || operation || ' ' || holder
        ELSE tenant || ' ' || caller || ' ' || operation || ' ' || holder || ' ' || coalesce(doubt, '') || ' '
            || coalesce(business_ref, '') || ' ' || coalesce(resource_type, '') || ' '
            || coalesce(resource_id, '') || ' ' || coalesce(error_code, '') || ' '
            || coalesce(sealing_key_id, '')
        END
    END AS texts
FROM semel_record
WHERE id = :id;

-- name: read_operation
-- The whole record of one operation id.
SELECT
    id, format, tenant, caller, operation, key_hash, recipe, fingerprint, state, effects, fence, nonce,
    holder, attempt, lapses, generation, operation_id, created_at, first_started_at, lease_until,
    deadline_at, dedup_until, lease_us, attempts_max, answer_us, tombstone_us, after_expiry, settled_at,
    answer_until, forget_after, doubt, business_ref, resource_type, resource_id, error_code, answer_kind,
    answer_digest, sealing_key_id, status, headers, request, body
FROM semel_record
WHERE operation_id = :operation_id
ORDER BY seq DESC
LIMIT 1;

-- name: insert_claim
-- Reserve a new key. Changes no row if the key is known: then read its record and decide.
INSERT INTO semel_record (
    id, format, tenant, caller, operation, key_hash, recipe, fingerprint, state, effects, fence, nonce,
    holder, attempt, lapses, generation, operation_id, created_at, first_started_at, lease_until,
    deadline_at, dedup_until, lease_us, attempts_max, answer_us, tombstone_us, after_expiry, answer_kind
) VALUES (
    :id, :format, :tenant, :caller, :operation, :key_hash, :recipe, :fingerprint, :state, :effects, :fence,
    :nonce, :holder, :attempt, :lapses, :generation, :operation_id, :created_at, :first_started_at,
    :lease_until, :deadline_at, :dedup_until, :lease_us, :attempts_max, :answer_us, :tombstone_us,
    :after_expiry, :answer_kind
)
ON CONFLICT (id) DO NOTHING;

-- name: settle
-- Settle the holder's open record. Changes no row if the fence or nonce is no longer the record's, or the record is no
-- longer open: then read it and decide.
UPDATE semel_record SET
    state = :state,
    settled_at = :now,
    answer_until = :now + answer_us,
    forget_after = :now + max(answer_us, tombstone_us),
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

-- name: settle_answered
-- The same for a kept answer and nothing else: many at a time, each of another record.
UPDATE semel_record SET
    state = :state,
    settled_at = :now,
    answer_until = :now + answer_us,
    forget_after = :now + max(answer_us, tombstone_us),
    doubt = NULL,
    error_code = NULL,
    business_ref = NULL,
    resource_type = NULL,
    resource_id = NULL,
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
    recipe = :recipe, fingerprint = :fingerprint, state = :state, effects = :effects, fence = :fence,
    nonce = :nonce, holder = :holder, attempt = :attempt, lapses = :lapses, generation = :generation,
    operation_id = :operation_id, created_at = :created_at, first_started_at = :first_started_at,
    lease_until = :lease_until, deadline_at = :deadline_at, dedup_until = :dedup_until, lease_us = :lease_us,
    attempts_max = :attempts_max, answer_us = :answer_us, tombstone_us = :tombstone_us,
    after_expiry = :after_expiry, settled_at = :settled_at, answer_until = :answer_until,
    forget_after = :forget_after, doubt = :doubt, resource_type = :resource_type, resource_id = :resource_id,
    error_code = :error_code, answer_kind = :answer_kind, answer_digest = :answer_digest,
    sealing_key_id = :sealing_key_id, status = :status, headers = :headers, request = :request, body = :body,
    business_ref = :business_ref
WHERE id = :id AND fence = :seen_fence AND nonce = :seen_nonce AND state = :seen_state
    AND lease_until = :seen_lease_until AND answer_kind = :seen_answer_kind AND doubt IS :seen_doubt
    AND (:seen_steps IS NULL OR coalesce(steps, x'') = :seen_steps);

-- name: find_records
-- A page for operators, newest first, without headers and bodies; seq is the page's cursor. No cursor is the greatest
-- number, not an OR, which would read everything before the page again.
SELECT
    seq,
    id, format, tenant, caller, operation, key_hash, recipe, fingerprint, state, effects, fence, nonce,
    holder, attempt, lapses, generation, operation_id, created_at, first_started_at, lease_until,
    deadline_at, dedup_until, lease_us, attempts_max, answer_us, tombstone_us, after_expiry, settled_at,
    answer_until, forget_after, doubt, business_ref, resource_type, resource_id, error_code, answer_kind,
    answer_digest, sealing_key_id, status
FROM semel_record
WHERE seq < coalesce(:before, 9223372036854775807) AND seq > :after
    AND (:states IS NULL OR instr(:states, ',' || state || ',') > 0)
    AND (:tenant IS NULL OR tenant = :tenant)
    AND (:caller IS NULL OR caller = :caller)
    AND (:operation IS NULL OR operation = :operation)
    AND (:lapsed = 0 OR (state IN (1, 2) AND lease_until <= :now))
ORDER BY seq DESC
LIMIT :limit;

-- name: count_listed
-- Count the open or unknown records, up to a limit.
SELECT count(*) FROM (SELECT 1 FROM semel_record WHERE state IN (1, 2, 6) AND (state = 1 OR state = 2 OR state = 6) LIMIT :look);

-- name: read_newest
-- The cursor of the newest record.
SELECT coalesce(max(seq), 0) FROM semel_record;

-- name: find_open
-- The same over open and unknown records only, by their small index.
SELECT
    seq,
    id, format, tenant, caller, operation, key_hash, recipe, fingerprint, state, effects, fence, nonce,
    holder, attempt, lapses, generation, operation_id, created_at, first_started_at, lease_until,
    deadline_at, dedup_until, lease_us, attempts_max, answer_us, tombstone_us, after_expiry, settled_at,
    answer_until, forget_after, doubt, business_ref, resource_type, resource_id, error_code, answer_kind,
    answer_digest, sealing_key_id, status
FROM semel_record
WHERE state IN (1, 2, 6) AND (state = 1 OR state = 2 OR state = 6)
    AND (:before IS NULL OR seq < :before)
    AND instr(:states, ',' || state || ',') > 0
    AND (:tenant IS NULL OR tenant = :tenant)
    AND (:caller IS NULL OR caller = :caller)
    AND (:operation IS NULL OR operation = :operation)
    AND (:lapsed = 0 OR (state IN (1, 2) AND lease_until <= :now))
ORDER BY seq DESC
LIMIT :limit;

-- name: turn
-- For a worker whose turn has come: what the records need.
-- include: semel.stores.sqlite sql/turn.sql
;

-- name: find_lapsed
-- Ids of PROCESSING records whose lease is over, oldest lease first: the reaper's work.
SELECT id
FROM semel_record
WHERE state IN (1, 2, 6) AND state = 2 AND lease_until <= :now
    AND (effects <> 2 OR dedup_until <= :now OR lapses + (lease_until > 0) >= attempts_max)
ORDER BY lease_until
LIMIT :limit;

-- name: purge_window
-- One chunk of the purge's walk in order of creation.
SELECT seq, answer_until, forget_after, answer_kind
FROM semel_record
WHERE seq > :after
ORDER BY seq
LIMIT :chunk;

-- name: drop_answer
-- The answer's retention is over; the tombstone stays.
UPDATE semel_record SET answer_kind = 2, headers = NULL, body = NULL
WHERE seq = :seq AND answer_until = :answer_until AND answer_kind IN (1, 3);

-- name: forget
-- The tombstone's retention is over. Open and unknown records never expire and are never selected here.
DELETE FROM semel_record
WHERE seq = :seq AND forget_after = :forget_after;

-- name: read_state
-- The state of one record, where there is one.
SELECT state FROM semel_record WHERE id = :id;

-- name: read_quota
-- One caller's usage of a quota. Read inside the writer's lock, in the transaction that takes the next place.
SELECT slice, slice_us, counts, listed FROM semel_quota WHERE id = :id;

-- name: write_quota
-- Write one caller's usage, with the place of the record that this transaction inserts.
INSERT INTO semel_quota (id, slice, slice_us, counts, listed) VALUES (:id, :slice, :slice_us, :counts, :listed)
ON CONFLICT (id) DO UPDATE SET
    slice = excluded.slice, slice_us = excluded.slice_us, counts = excluded.counts, listed = excluded.listed;

-- name: old_quotas
-- Callers of whom no new key counts any more; their listed records may still be open.
SELECT id, slice, slice_us, counts, listed FROM semel_quota
WHERE (slice + 21) * slice_us <= :now
ORDER BY id
LIMIT :limit;

-- name: forget_quota
-- Drop a usage that no longer counts.
DELETE FROM semel_quota WHERE id = :id;

-- name: has_quotas
-- Whether new keys may be counted in this file.
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'semel_quota';

-- name: has_waiting_messages
-- Whether the messages that were tried and not handled have their index.
SELECT count(*) FROM sqlite_master WHERE type = 'index' AND name = 'semel_inbox_open';

-- name: count_states
-- How many records are in each state.
SELECT state, count(*) FROM semel_record GROUP BY state ORDER BY state;

-- name: write_audit
-- One line of the audit trail.
INSERT INTO semel_audit (at, record_id, actor, action, reason, fence)
VALUES (:at, :record_id, :actor, :action, :reason, :fence);

-- name: read_audit
-- The newest lines of the audit trail, of one record or of all.
SELECT at, record_id, actor, action, reason, fence
FROM semel_audit
WHERE :record_id IS NULL OR record_id = :record_id
ORDER BY seq DESC
LIMIT :limit;

-- name: has_meta
-- Whether this database was ever migrated.
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'semel_meta';

-- name: read_meta
-- This store's identity.
SELECT store_id, schema_version, epoch, id_format, secret_check FROM semel_meta;

-- name: first_meta
-- The first migration writes it once.
INSERT INTO semel_meta (one, store_id, schema_version, epoch, id_format, secret_check)
VALUES (1, :store_id, :schema_version, 1, 1, :secret_check)
ON CONFLICT (one) DO NOTHING;

-- name: write_schema_version
-- Each later migration raises it.
UPDATE semel_meta SET schema_version = :schema_version WHERE schema_version < :schema_version;
