-- What `semel move` and `semel export` read and write on PostgreSQL beside records: whole rows, a page at a time.

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
    (SELECT coalesce(sum(generation + attempts + submissions), 0)::bigint FROM semel_import);

-- name: relays
-- For how many microseconds a relay of this store still counts as alive; without one: no row.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
SELECT lease_until - clock.now FROM semel_relay, clock WHERE lease_until > clock.now
ORDER BY lease_until DESC LIMIT 1;

-- name: operations_page
-- A page of them.
SELECT
    operation_id, record_id, tenant, caller, operation, business_ref, ref_id, holds, state, resource_type,
    resource_id, error_code, keep_us, created_at, settled_at, forget_after
FROM semel_operation WHERE operation_id > :operation_id::bytea
ORDER BY operation_id LIMIT :limit::bigint;

-- name: operations_there
-- Those of these names.
SELECT
    t.operation_id, t.record_id, t.tenant, t.caller, t.operation, t.business_ref, t.ref_id, t.holds, t.state,
    t.resource_type, t.resource_id, t.error_code, t.keep_us, t.created_at, t.settled_at, t.forget_after
FROM unnest(:operation_id::bytea[]) AS u (operation_id)
JOIN semel_operation AS t ON t.operation_id = u.operation_id;

-- name: operations_put
-- Write operations, except one whose business reference another operation holds.
INSERT INTO semel_operation (
    operation_id, record_id, tenant, caller, operation, business_ref, ref_id, holds, state, resource_type,
    resource_id, error_code, keep_us, created_at, settled_at, forget_after
)
SELECT
    u.operation_id, u.record_id, u.tenant, u.caller, u.operation, u.business_ref, u.ref_id, u.holds, u.state,
    u.resource_type, u.resource_id, u.error_code, u.keep_us, u.created_at, u.settled_at, u.forget_after
FROM unnest(
    :operation_id::bytea[], :record_id::bytea[], :tenant::text[], :caller::text[], :operation::text[],
    :business_ref::text[], :ref_id::bytea[], :holds::bytea[], :state::smallint[],
    :resource_type::text[], :resource_id::text[], :error_code::text[], :keep_us::bigint[],
    :created_at::bigint[], :settled_at::bigint[], :forget_after::bigint[]
) WITH ORDINALITY AS u (
    operation_id, record_id, tenant, caller, operation, business_ref, ref_id, holds, state, resource_type,
    resource_id, error_code, keep_us, created_at, settled_at, forget_after, turn
)
ORDER BY u.turn
ON CONFLICT DO NOTHING
RETURNING 1;

-- name: bulks_page
-- A page of them.
SELECT
    operation_id, total, done, succeeded, failed, retryable, unknown, created_at, touched_at
FROM semel_bulk WHERE operation_id > :operation_id::bytea
ORDER BY operation_id LIMIT :limit::bigint;

-- name: bulks_there
-- Those of these names.
SELECT
    t.operation_id, t.total, t.done, t.succeeded, t.failed, t.retryable, t.unknown, t.created_at, t.touched_at
FROM unnest(:operation_id::bytea[]) AS u (operation_id)
JOIN semel_bulk AS t ON t.operation_id = u.operation_id;

-- name: bulks_put
-- Write how far bulks are.
INSERT INTO semel_bulk (
    operation_id, total, done, succeeded, failed, retryable, unknown, created_at, touched_at
)
SELECT
    u.operation_id, u.total, u.done, u.succeeded, u.failed, u.retryable, u.unknown, u.created_at, u.touched_at
FROM unnest(
    :operation_id::bytea[], :total::bigint[], :done::bigint[], :succeeded::bigint[], :failed::bigint[],
    :retryable::bigint[], :unknown::bigint[], :created_at::bigint[], :touched_at::bigint[]
) WITH ORDINALITY AS u (
    operation_id, total, done, succeeded, failed, retryable, unknown, created_at, touched_at, turn
)
ORDER BY u.turn
ON CONFLICT DO NOTHING
RETURNING 1;

-- name: items_page
-- A page of them.
SELECT
    operation_id, place, item_id, state, target_id, result_id, error_code, retryable, detail, settled_at
FROM semel_item WHERE (operation_id, place) > (:operation_id::bytea, :place::bigint)
ORDER BY operation_id, place LIMIT :limit::bigint;

-- name: items_there
-- Those of these names.
SELECT
    t.operation_id, t.place, t.item_id, t.state, t.target_id, t.result_id, t.error_code, t.retryable, t.detail,
    t.settled_at
FROM unnest(:operation_id::bytea[], :place::bigint[]) AS u (operation_id, place)
JOIN semel_item AS t ON t.operation_id = u.operation_id AND t.place = u.place;

-- name: items_put
-- Write the items of bulks.
INSERT INTO semel_item (
    operation_id, place, item_id, state, target_id, result_id, error_code, retryable, detail, settled_at
)
SELECT
    u.operation_id, u.place, u.item_id, u.state, u.target_id, u.result_id, u.error_code, u.retryable, u.detail,
    u.settled_at
FROM unnest(
    :operation_id::bytea[], :place::bigint[], :item_id::text[], :state::smallint[], :target_id::text[],
    :result_id::text[], :error_code::text[], :retryable::smallint[], :detail::bytea[],
    :settled_at::bigint[]
) WITH ORDINALITY AS u (
    operation_id, place, item_id, state, target_id, result_id, error_code, retryable, detail, settled_at, turn
)
ORDER BY u.turn
ON CONFLICT DO NOTHING
RETURNING 1;

-- name: events_page
-- A page of them, oldest first.
SELECT
    id::text, aggregatetype, aggregateid, type, payload, topic, headers, tenant, lane, operation_id,
    created_at, tries, next_at, parked_at, reason, published_at, seq
FROM semel_event WHERE seq > :seq::bigint
ORDER BY seq LIMIT :limit::bigint;

-- name: events_there
-- Those of these names.
SELECT
    t.id::text, t.aggregatetype, t.aggregateid, t.type, t.payload, t.topic, t.headers, t.tenant, t.lane,
    t.operation_id, t.created_at, t.tries, t.next_at, t.parked_at, t.reason, t.published_at
FROM unnest(:id::text[]) AS u (id)
JOIN semel_event AS t ON t.id = u.id::uuid;

-- name: events_put
-- Write events, in their order. An existing one is only marked as published.
INSERT INTO semel_event (
    id, aggregatetype, aggregateid, type, payload, topic, headers, tenant, lane, operation_id, created_at,
    tries, next_at, parked_at, reason, published_at
)
SELECT
    u.id::uuid, u.aggregatetype, u.aggregateid, u.type, u.payload, u.topic, u.headers, u.tenant, u.lane,
    u.operation_id, u.created_at, u.tries, u.next_at, u.parked_at, u.reason, u.published_at
FROM unnest(
    :id::text[], :aggregatetype::text[], :aggregateid::text[], :type::text[], :payload::bytea[],
    :topic::text[], :headers::bytea[], :tenant::text[], :lane::smallint[], :operation_id::bytea[],
    :created_at::bigint[], :tries::integer[], :next_at::bigint[], :parked_at::bigint[],
    :reason::text[], :published_at::bigint[]
) WITH ORDINALITY AS u (
    id, aggregatetype, aggregateid, type, payload, topic, headers, tenant, lane, operation_id, created_at,
    tries, next_at, parked_at, reason, published_at, turn
)
ORDER BY u.turn
ON CONFLICT (id) DO UPDATE SET published_at = excluded.published_at
WHERE semel_event.published_at IS NULL AND excluded.published_at IS NOT NULL
RETURNING 1;

-- name: messages_page
-- A page of them.
SELECT
    consumer, message_id, handled_at, tries, parked_at, reason, forget_after
FROM semel_inbox WHERE (consumer, message_id) > (:consumer::text, :message_id::text)
ORDER BY consumer, message_id LIMIT :limit::bigint;

-- name: messages_there
-- Those of these names.
SELECT
    t.consumer, t.message_id, t.handled_at, t.tries, t.parked_at, t.reason, t.forget_after
FROM unnest(:consumer::text[], :message_id::text[]) AS u (consumer, message_id)
JOIN semel_inbox AS t ON t.consumer = u.consumer AND t.message_id = u.message_id;

-- name: messages_put
-- Write which messages were handled. An existing one is marked as handled, with its time to be kept.
INSERT INTO semel_inbox (
    consumer, message_id, handled_at, tries, parked_at, reason, forget_after
)
SELECT
    u.consumer, u.message_id, u.handled_at, u.tries, u.parked_at, u.reason, u.forget_after
FROM unnest(
    :consumer::text[], :message_id::text[], :handled_at::bigint[], :tries::integer[],
    :parked_at::bigint[], :reason::text[], :forget_after::bigint[]
) WITH ORDINALITY AS u (
    consumer, message_id, handled_at, tries, parked_at, reason, forget_after, turn
)
ORDER BY u.turn
ON CONFLICT (consumer, message_id) DO UPDATE SET
    handled_at = excluded.handled_at, parked_at = NULL, forget_after = excluded.forget_after
WHERE semel_inbox.handled_at IS NULL AND excluded.handled_at IS NOT NULL
RETURNING 1;

-- name: records_stretch
-- The id where a stretch of records ends; no row: there are fewer.
SELECT id FROM semel_record WHERE id > :id::bytea ORDER BY id LIMIT 1 OFFSET :skipped::bigint;

-- name: steps_page
-- The steps of one stretch's executions without an outcome, and the requests that resume them.
SELECT id, operation_id, steps, request FROM semel_record
WHERE id > :id::bytea AND id <= :reached::bytea AND state IN (5, 6) AND (steps IS NOT NULL OR request IS NOT NULL)
ORDER BY id LIMIT :limit::bigint;

-- name: steps_there
-- Those of these records.
SELECT r.id, r.operation_id, r.steps, r.request
FROM unnest(:id::bytea[]) AS u (id) JOIN semel_record AS r ON r.id = u.id;

-- name: steps_put
-- Write them to the copies of their records, which no process has claimed yet.
UPDATE semel_record AS r SET steps = u.steps, request = u.request
FROM unnest(:id::bytea[], :operation_id::bytea[], :steps::bytea[], :request::bytea[])
    AS u (id, operation_id, steps, request)
WHERE r.id = u.id AND r.operation_id = u.operation_id AND r.state IN (5, 6)
RETURNING 1;

-- name: imports_page
-- A page of them.
SELECT
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe, state,
    attempts, next_at, error_code, reason, row_count, booked, skipped, failed, unknown, submissions, bulk_id,
    content_ref, content_until, keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at,
    forget_after
FROM semel_import WHERE id > :id::bytea
ORDER BY id LIMIT :limit::bigint;

-- name: imports_there
-- Those of these names.
SELECT
    t.id, t.tenant, t.operation, t.supplier, t.idempotency_key, t.generation, t.sha256, t.bytes, t.media_type,
    t.recipe, t.state, t.attempts, t.next_at, t.error_code, t.reason, t.row_count, t.booked, t.skipped,
    t.failed, t.unknown, t.submissions, t.bulk_id, t.content_ref, t.content_until, t.keep_content_us, t.keep_us,
    t.created_at, t.last_seen_at, t.started_at, t.ended_at, t.forget_after
FROM unnest(:id::bytea[]) AS u (id)
JOIN semel_import AS t ON t.id = u.id;

-- name: imports_put
-- Write the jobs of imports.
INSERT INTO semel_import (
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe, state,
    attempts, next_at, error_code, reason, row_count, booked, skipped, failed, unknown, submissions, bulk_id,
    content_ref, content_until, keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at,
    forget_after
)
SELECT
    u.id, u.tenant, u.operation, u.supplier, u.idempotency_key, u.generation, u.sha256, u.bytes, u.media_type,
    u.recipe, u.state, u.attempts, u.next_at, u.error_code, u.reason, u.row_count, u.booked, u.skipped,
    u.failed, u.unknown, u.submissions, u.bulk_id, u.content_ref, u.content_until, u.keep_content_us, u.keep_us,
    u.created_at, u.last_seen_at, u.started_at, u.ended_at, u.forget_after
FROM unnest(
    :id::bytea[], :tenant::text[], :operation::text[], :supplier::text[], :idempotency_key::text[],
    :generation::bigint[], :digest::bytea[], :bytes::bigint[], :media_type::text[], :recipe::text[],
    :state::smallint[], :attempts::bigint[], :next_at::bigint[], :error_code::text[], :reason::text[],
    :row_count::bigint[], :booked::bigint[], :skipped::bigint[], :failed::bigint[], :unknown::bigint[],
    :submissions::bigint[], :bulk_id::bytea[], :content_ref::text[], :content_until::bigint[],
    :keep_content_us::bigint[], :keep_us::bigint[], :created_at::bigint[], :last_seen_at::bigint[],
    :started_at::bigint[], :ended_at::bigint[], :forget_after::bigint[]
) WITH ORDINALITY AS u (
    id, tenant, operation, supplier, idempotency_key, generation, sha256, bytes, media_type, recipe, state,
    attempts, next_at, error_code, reason, row_count, booked, skipped, failed, unknown, submissions, bulk_id,
    content_ref, content_until, keep_content_us, keep_us, created_at, last_seen_at, started_at, ended_at,
    forget_after, turn
)
ORDER BY u.turn
ON CONFLICT DO NOTHING
RETURNING 1;

-- name: import_names_page
-- A page of them.
SELECT
    import_id, name, times, first_seen_at, last_seen_at
FROM semel_import_name WHERE (import_id, name) > (:import_id::bytea, :name::text)
ORDER BY import_id, name LIMIT :limit::bigint;

-- name: import_names_there
-- Those of these names.
SELECT
    t.import_id, t.name, t.times, t.first_seen_at, t.last_seen_at
FROM unnest(:import_id::bytea[], :name::text[]) AS u (import_id, name)
JOIN semel_import_name AS t ON t.import_id = u.import_id AND t.name = u.name;

-- name: import_names_put
-- Write the names that files came under.
INSERT INTO semel_import_name (
    import_id, name, times, first_seen_at, last_seen_at
)
SELECT
    u.import_id, u.name, u.times, u.first_seen_at, u.last_seen_at
FROM unnest(
    :import_id::bytea[], :name::text[], :times::bigint[], :first_seen_at::bigint[], :last_seen_at::bigint[]
) WITH ORDINALITY AS u (
    import_id, name, times, first_seen_at, last_seen_at, turn
)
ORDER BY u.turn
ON CONFLICT DO NOTHING
RETURNING 1;

-- name: known_rows_page
-- A page of them.
SELECT
    id, import_id, place, forget_after
FROM semel_import_row WHERE id > :id::bytea
ORDER BY id LIMIT :limit::bigint;

-- name: known_rows_there
-- Those of these names.
SELECT
    t.id, t.import_id, t.place, t.forget_after
FROM unnest(:id::bytea[]) AS u (id)
JOIN semel_import_row AS t ON t.id = u.id;

-- name: known_rows_put
-- Write which rows of imports were booked.
INSERT INTO semel_import_row (
    id, import_id, place, forget_after
)
SELECT
    u.id, u.import_id, u.place, u.forget_after
FROM unnest(
    :id::bytea[], :import_id::bytea[], :place::bigint[], :forget_after::bigint[]
) WITH ORDINALITY AS u (
    id, import_id, place, forget_after, turn
)
ORDER BY u.turn
ON CONFLICT DO NOTHING
RETURNING 1;

-- name: file_parts_page
-- A page of them.
SELECT
    sha256, place, body
FROM semel_import_part WHERE (sha256, place) > (:digest::bytea, :place::bigint)
ORDER BY sha256, place LIMIT :limit::bigint;

-- name: file_parts_there
-- Those of these names.
SELECT
    t.sha256, t.place, t.body
FROM unnest(:digest::bytea[], :place::bigint[]) AS u (sha256, place)
JOIN semel_import_part AS t ON t.sha256 = u.sha256 AND t.place = u.place;

-- name: file_parts_put
-- Write the parts of kept files.
INSERT INTO semel_import_part (
    sha256, place, body
)
SELECT
    u.sha256, u.place, u.body
FROM unnest(
    :digest::bytea[], :place::bigint[], :body::bytea[]
) WITH ORDINALITY AS u (
    sha256, place, body, turn
)
ORDER BY u.turn
ON CONFLICT DO NOTHING
RETURNING 1;

-- name: files_page
-- A page of them.
SELECT
    sha256, bytes, whole, touched_at
FROM semel_import_blob WHERE sha256 > :digest::bytea
ORDER BY sha256 LIMIT :limit::bigint;

-- name: files_there
-- Those of these names.
SELECT
    t.sha256, t.bytes, t.whole, t.touched_at
FROM unnest(:digest::bytea[]) AS u (sha256)
JOIN semel_import_blob AS t ON t.sha256 = u.sha256;

-- name: files_put
-- Write which files are kept, after their parts.
INSERT INTO semel_import_blob (
    sha256, bytes, whole, touched_at
)
SELECT
    u.sha256, u.bytes, u.whole, u.touched_at
FROM unnest(
    :digest::bytea[], :bytes::bigint[], :whole::smallint[], :touched_at::bigint[]
) WITH ORDINALITY AS u (
    sha256, bytes, whole, touched_at, turn
)
ORDER BY u.turn
ON CONFLICT DO NOTHING
RETURNING 1;
