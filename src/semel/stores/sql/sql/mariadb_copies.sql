-- What `semel move` and `semel export` read and write on MariaDB beside records: whole rows, a page at a time.
-- What SQLite and MariaDB share is in copies.sql.

-- name: tally
-- Count the rows of each kind, and find the last of those that are only ever added.
SELECT
    (SELECT count(*) FROM semel_operation),
    (SELECT count(*) FROM semel_bulk),
    (SELECT count(*) FROM semel_item),
    (SELECT count(*) FROM semel_event WHERE published_at IS NULL AND parked_at IS NULL),
    (SELECT count(*) FROM semel_event WHERE published_at IS NULL AND parked_at IS NOT NULL),
    (SELECT count(*) FROM semel_event WHERE published_at IS NOT NULL),
    (SELECT count(*) FROM semel_inbox),
    (SELECT count(*) FROM semel_record WHERE state IN (5, 6) AND (steps IS NOT NULL OR request IS NOT NULL)),
    (SELECT coalesce(max(seq), 0) FROM semel_event),
    (SELECT count(*) FROM semel_inbox WHERE handled_at IS NOT NULL),
    (SELECT count(*) FROM semel_import),
    (SELECT count(*) FROM semel_import WHERE content_ref IS NOT NULL AND content_ref NOT LIKE 'database%'),
    (SELECT count(*) FROM semel_import_blob),
    (SELECT count(*) FROM semel_import_row),
    (SELECT CAST(coalesce(sum(generation + attempts + submissions), 0) AS SIGNED) FROM semel_import);

-- name: operations_put
-- Write operations, except one whose business reference another operation holds.
INSERT INTO semel_operation (
    operation_id, record_id, tenant, caller, operation, business_ref, ref_id, holds, state, resource_type,
    resource_id, error_code, keep_us, created_at, settled_at, forget_after
)
VALUES (
    :operation_id, :record_id, :tenant, :caller, :operation, :business_ref, :ref_id, :holds, :state,
    :resource_type, :resource_id, :error_code, :keep_us, :created_at, :settled_at, :forget_after
)
ON DUPLICATE KEY UPDATE operation_id = semel_operation.operation_id;

-- name: bulks_put
-- Write how far bulks are.
INSERT INTO semel_bulk (
    operation_id, total, done, succeeded, failed, retryable, unknown, created_at, touched_at
)
VALUES (
    :operation_id, :total, :done, :succeeded, :failed, :retryable, :unknown, :created_at, :touched_at
)
ON DUPLICATE KEY UPDATE operation_id = semel_bulk.operation_id;

-- name: items_page
-- A page of them.
SELECT
    operation_id, place, item_id, state, target_id, result_id, error_code, retryable, detail, settled_at
FROM semel_item WHERE operation_id > :operation_id OR (operation_id = :operation_id AND place > :place)
ORDER BY operation_id, place LIMIT :limit;

-- name: items_put
-- Write the items of bulks.
INSERT INTO semel_item (
    operation_id, place, item_id, state, target_id, result_id, error_code, retryable, detail, settled_at
)
VALUES (
    :operation_id, :place, :item_id, :state, :target_id, :result_id, :error_code, :retryable, :detail,
    :settled_at
)
ON DUPLICATE KEY UPDATE operation_id = semel_item.operation_id;

-- name: events_put
-- Write events, in their order. An existing one is only marked as published.
INSERT INTO semel_event (
    id, aggregatetype, aggregateid, type, payload, topic, headers, tenant, lane, operation_id, created_at,
    tries, next_at, parked_at, reason, published_at
)
VALUES (
    :id, :aggregatetype, :aggregateid, :type, :payload, :topic, :headers, :tenant, :lane, :operation_id,
    :created_at, :tries, :next_at, :parked_at, :reason, :published_at
)
ON DUPLICATE KEY UPDATE published_at = COALESCE(semel_event.published_at, VALUES(published_at));

-- name: messages_page
-- A page of them.
SELECT
    consumer, message_id, handled_at, tries, parked_at, reason, forget_after
FROM semel_inbox WHERE consumer > :consumer OR (consumer = :consumer AND message_id > :message_id)
ORDER BY consumer, message_id LIMIT :limit;

-- name: messages_put
-- Write which messages were handled. An existing one is marked as handled, with its time to be kept.
INSERT INTO semel_inbox (
    consumer, message_id, handled_at, tries, parked_at, reason, forget_after
)
VALUES (
    :consumer, :message_id, :handled_at, :tries, :parked_at, :reason, :forget_after
)
ON DUPLICATE KEY UPDATE
    parked_at = IF(semel_inbox.handled_at IS NULL AND VALUES(handled_at) IS NOT NULL, NULL, semel_inbox.parked_at),
    forget_after = IF(
        semel_inbox.handled_at IS NULL AND VALUES(handled_at) IS NOT NULL, VALUES(forget_after), semel_inbox.forget_after
    ),
    handled_at = COALESCE(semel_inbox.handled_at, VALUES(handled_at));

-- name: imports_put
-- Write the jobs of imports.
INSERT INTO semel_import (
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe, state,
    attempts, next_at, error_code, reason, row_count, booked, skipped, failed, unknown, submissions, bulk_id,
    content_ref, content_until, keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at,
    forget_after
)
VALUES (
    :id, :tenant, :operation, :supplier, :idempotency_key, :generation, :digest, :bytes, :media_type, :recipe,
    :state, :attempts, :next_at, :error_code, :reason, :row_count, :booked, :skipped, :failed, :unknown,
    :submissions, :bulk_id, :content_ref, :content_until, :keep_content_us, :keep_us, :created_at,
    :last_seen_at, :started_at, :ended_at, :forget_after
)
ON DUPLICATE KEY UPDATE id = semel_import.id;

-- name: import_names_page
-- A page of them.
SELECT
    import_id, name, times, first_seen_at, last_seen_at
FROM semel_import_name WHERE import_id > :import_id OR (import_id = :import_id AND name > :name)
ORDER BY import_id, name LIMIT :limit;

-- name: import_names_put
-- Write the names that files came under.
INSERT INTO semel_import_name (
    import_id, name, times, first_seen_at, last_seen_at
)
VALUES (
    :import_id, :name, :times, :first_seen_at, :last_seen_at
)
ON DUPLICATE KEY UPDATE import_id = semel_import_name.import_id;

-- name: known_rows_put
-- Write which rows of imports were booked.
INSERT INTO semel_import_row (
    id, import_id, place, forget_after
)
VALUES (
    :id, :import_id, :place, :forget_after
)
ON DUPLICATE KEY UPDATE id = semel_import_row.id;

-- name: file_parts_page
-- A page of them.
SELECT
    sha256, place, body
FROM semel_import_part WHERE sha256 > :digest OR (sha256 = :digest AND place > :place)
ORDER BY sha256, place LIMIT :limit;

-- name: file_parts_put
-- Write the parts of kept files.
INSERT INTO semel_import_part (
    sha256, place, body
)
VALUES (
    :digest, :place, :body
)
ON DUPLICATE KEY UPDATE sha256 = semel_import_part.sha256;

-- name: files_put
-- Write which files are kept, after their parts.
INSERT INTO semel_import_blob (
    sha256, bytes, whole, touched_at
)
VALUES (
    :digest, :bytes, :whole, :touched_at
)
ON DUPLICATE KEY UPDATE sha256 = semel_import_blob.sha256;
