-- What `semel move` and `semel export` read and write on SQLite and MariaDB beside records: whole rows, a page at a
-- time.

-- name: relays
-- For how many microseconds a relay of this store still counts as alive; without one: no row.
SELECT lease_until - :now FROM semel_relay WHERE lease_until > :now
ORDER BY lease_until DESC LIMIT 1;

-- name: operations_page
-- A page of them.
SELECT
    operation_id, record_id, tenant, caller, operation, business_ref, ref_id, holds, state, resource_type,
    resource_id, error_code, keep_us, created_at, settled_at, forget_after
FROM semel_operation WHERE operation_id > :operation_id
ORDER BY operation_id LIMIT :limit;

-- name: operations_there
-- The one of this name.
SELECT
    operation_id, record_id, tenant, caller, operation, business_ref, ref_id, holds, state, resource_type,
    resource_id, error_code, keep_us, created_at, settled_at, forget_after
FROM semel_operation WHERE operation_id = :operation_id;

-- name: bulks_page
-- A page of them.
SELECT
    operation_id, total, done, succeeded, failed, retryable, unknown, created_at, touched_at
FROM semel_bulk WHERE operation_id > :operation_id
ORDER BY operation_id LIMIT :limit;

-- name: bulks_there
-- The one of this name.
SELECT
    operation_id, total, done, succeeded, failed, retryable, unknown, created_at, touched_at
FROM semel_bulk WHERE operation_id = :operation_id;

-- name: items_there
-- The one of this name.
SELECT
    operation_id, place, item_id, state, target_id, result_id, error_code, retryable, detail, settled_at
FROM semel_item WHERE operation_id = :operation_id AND place = :place;

-- name: events_page
-- A page of them, oldest first.
SELECT
    id, aggregatetype, aggregateid, type, payload, topic, headers, tenant, lane, operation_id, created_at,
    tries, next_at, parked_at, reason, published_at, seq
FROM semel_event WHERE seq > :seq
ORDER BY seq LIMIT :limit;

-- name: events_there
-- The one of this name.
SELECT
    id, aggregatetype, aggregateid, type, payload, topic, headers, tenant, lane, operation_id, created_at,
    tries, next_at, parked_at, reason, published_at
FROM semel_event WHERE id = :id;

-- name: messages_there
-- The one of this name.
SELECT
    consumer, message_id, handled_at, tries, parked_at, reason, forget_after
FROM semel_inbox WHERE consumer = :consumer AND message_id = :message_id;

-- name: records_stretch
-- The id where a stretch of records ends; no row: there are fewer.
SELECT id FROM semel_record WHERE id > :id ORDER BY id LIMIT 1 OFFSET :skipped;

-- name: steps_page
-- The steps of one stretch's executions without an outcome, and the requests that resume them.
SELECT id, operation_id, steps, request FROM semel_record
WHERE id > :id AND id <= :reached AND state IN (5, 6) AND (steps IS NOT NULL OR request IS NOT NULL)
ORDER BY id LIMIT :limit;

-- name: steps_there
-- That of one record.
SELECT id, operation_id, steps, request FROM semel_record WHERE id = :id;

-- name: steps_put
-- Write them to the copy of its record, which no process has claimed yet.
UPDATE semel_record SET steps = :steps, request = :request
WHERE id = :id AND operation_id = :operation_id AND state IN (5, 6);

-- name: imports_page
-- A page of them.
SELECT
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe, state,
    attempts, next_at, error_code, reason, row_count, booked, skipped, failed, unknown, submissions, bulk_id,
    content_ref, content_until, keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at,
    forget_after
FROM semel_import WHERE id > :id
ORDER BY id LIMIT :limit;

-- name: imports_there
-- The one of this name.
SELECT
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe, state,
    attempts, next_at, error_code, reason, row_count, booked, skipped, failed, unknown, submissions, bulk_id,
    content_ref, content_until, keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at,
    forget_after
FROM semel_import WHERE id = :id;

-- name: import_names_there
-- The one of this name.
SELECT
    import_id, name, times, first_seen_at, last_seen_at
FROM semel_import_name WHERE import_id = :import_id AND name = :name;

-- name: known_rows_page
-- A page of them.
SELECT
    id, import_id, place, forget_after
FROM semel_import_row WHERE id > :id
ORDER BY id LIMIT :limit;

-- name: known_rows_there
-- The one of this name.
SELECT
    id, import_id, place, forget_after
FROM semel_import_row WHERE id = :id;

-- name: file_parts_there
-- The one of this name.
SELECT
    sha256, place, body
FROM semel_import_part WHERE sha256 = :digest AND place = :place;

-- name: files_page
-- A page of them.
SELECT
    sha256, bytes, whole, touched_at
FROM semel_import_blob WHERE sha256 > :digest
ORDER BY sha256 LIMIT :limit;

-- name: files_there
-- The one of this name.
SELECT
    sha256, bytes, whole, touched_at
FROM semel_import_blob WHERE sha256 = :digest;
