-- Every statement of the PostgreSQL store, by name. One round trip each, no session state, values always as parameters.
-- The driver supplies :now: NULL for the server's own clock (statement_timestamp: one time for all that a statement
-- decides), microseconds if a test sets the clock. Batches are sorted by id, so that two never deadlock. A holder's
-- write names fence and nonce; every list has a limit and an order. "Planned once": the server may keep the plan, which
-- is right for every size of the table. All others are planned anew each time.

-- name: claim (planned once)
-- Reserve new keys, and read the records of the others, in one statement that writes nothing for a replay. An id that
-- comes back in neither half was claimed after this statement's snapshot, or is held by an open transaction: ask again.
-- The statement tries the advisory lock and never waits. The lock reveals an ATOMIC unit's claim that is still
-- invisible, for which the unique index would make a whole batch wait. The table's own number is part of the lock, so
-- that two stores in two schemas of one database do not share it. :store is the id of the store that this process has
-- opened, NULL before that. In another store the time is NULL, nothing is written, and the one row that comes back has
-- no id.
WITH clock AS MATERIALIZED (
    SELECT CASE WHEN :store::text IS NULL OR :store::text = (SELECT store_id FROM semel_meta WHERE one = 1) THEN
        coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) END AS now
),
known AS MATERIALIZED (
    SELECT
        id, format, tenant, caller, operation, key_hash, recipe, fingerprint, state, effects, fence, nonce, holder,
        attempt, lapses, generation, operation_id, created_at, first_started_at, lease_until, deadline_at,
        dedup_until, lease_us, attempts_max, answer_us, tombstone_us, after_expiry, settled_at, answer_until,
        forget_after, doubt, business_ref, resource_type, resource_id, error_code, answer_kind, answer_digest,
        sealing_key_id, status, headers, request, body
    FROM semel_record
    WHERE id = ANY(:id::bytea[])
),
won AS (
    INSERT INTO semel_record (
        id, format, tenant, caller, operation, key_hash, recipe, fingerprint, state, effects, fence, nonce, holder,
        attempt, lapses, generation, operation_id, created_at, first_started_at, lease_until, deadline_at,
        dedup_until, lease_us, attempts_max, answer_us, tombstone_us, after_expiry, answer_kind
    )
    SELECT
        w.id, 1, w.tenant, w.caller, w.operation, w.key_hash, w.recipe, w.fingerprint, w.state, w.effects, clock.now,
        w.nonce, w.holder, 1, 0, 0, w.operation_id, clock.now, clock.now, clock.now + least(w.lease_us,
        w.deadline_us), clock.now + w.deadline_us, clock.now + w.dedup_us, w.lease_us, w.attempts_max, w.answer_us,
        w.tombstone_us, w.after_expiry, 0
    FROM clock, unnest(
        :id::bytea[], :tenant::text[], :caller::text[], :operation::text[], :key_hash::bytea[], :recipe::text[],
        :fingerprint::bytea[], :state::smallint[], :effects::smallint[], :nonce::bytea[], :holder::text[],
        :operation_id::bytea[], :lease_us::bigint[], :deadline_us::bigint[], :dedup_us::bigint[],
        :attempts_max::integer[], :answer_us::bigint[], :tombstone_us::bigint[], :after_expiry::smallint[],
        :lock::bigint[]
    ) AS w (
        id, tenant, caller, operation, key_hash, recipe, fingerprint, state, effects, nonce, holder, operation_id,
        lease_us, deadline_us, dedup_us, attempts_max, answer_us, tombstone_us, after_expiry, lock
    )
    WHERE clock.now IS NOT NULL AND NOT EXISTS (SELECT FROM known WHERE known.id = w.id)
        AND pg_try_advisory_xact_lock_shared(w.lock # ('semel_record'::regclass::oid::bigint << 32))
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
SELECT
    clock.now, won.id, NULL::smallint, NULL::text, NULL::text, NULL::text, NULL::bytea, NULL::text, NULL::bytea,
    NULL::smallint, NULL::smallint, NULL::bigint, NULL::bytea, NULL::text, NULL::integer, NULL::integer,
    NULL::integer, NULL::bytea, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
    NULL::integer, NULL::bigint, NULL::bigint, NULL::smallint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::text,
    NULL::text, NULL::text, NULL::text, NULL::text, NULL::smallint, NULL::bytea, NULL::text, NULL::integer,
    NULL::bytea, NULL::bytea, NULL::bytea
FROM clock LEFT JOIN won ON true
WHERE clock.now IS NULL OR won.id IS NOT NULL
UNION ALL
SELECT
    clock.now, known.id, known.format, known.tenant, known.caller, known.operation, known.key_hash, known.recipe,
    known.fingerprint, known.state, known.effects, known.fence, known.nonce, known.holder, known.attempt,
    known.lapses, known.generation, known.operation_id, known.created_at, known.first_started_at, known.lease_until,
    known.deadline_at, known.dedup_until, known.lease_us, known.attempts_max, known.answer_us, known.tombstone_us,
    known.after_expiry, known.settled_at, known.answer_until, known.forget_after, known.doubt, known.business_ref,
    known.resource_type, known.resource_id, known.error_code, known.answer_kind, known.answer_digest,
    known.sealing_key_id, known.status, known.headers, known.request, known.body
FROM known, clock
WHERE clock.now IS NOT NULL;

-- name: claim_in_unit
-- The same for one key inside an ATOMIC unit, which alone holds the lock until its end. In a savepoint it divides by
-- zero: a rollback to the savepoint would undo the record, but not the writes before it. Its values are plain, so that
-- the server keeps the plan on connections that are not set up for batches, such as a user's. It returns one row at
-- most: this statement cannot see the new record, so its row and an existing record's never come together.
WITH clock AS MATERIALIZED (
    SELECT CASE WHEN :store::text IS NULL OR :store::text = (SELECT store_id FROM semel_meta WHERE one = 1) THEN
        coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) END AS now
),
won AS (
    INSERT INTO semel_record (
        id, format, tenant, caller, operation, key_hash, recipe, fingerprint, state, effects, fence, nonce, holder,
        attempt, lapses, generation, operation_id, created_at, first_started_at, lease_until, deadline_at,
        dedup_until, lease_us, attempts_max, answer_us, tombstone_us, after_expiry, answer_kind
    )
    SELECT
        :id::bytea, 1, :tenant::text, :caller::text, :operation::text, :key_hash::bytea, :recipe::text,
        :fingerprint::bytea, :state::smallint, :effects::smallint, clock.now, :nonce::bytea, :holder::text, 1, 0, 0,
        :operation_id::bytea, clock.now, clock.now, clock.now + least(:lease_us::bigint, :deadline_us::bigint),
        clock.now + :deadline_us::bigint, clock.now + :dedup_us::bigint, :lease_us::bigint, :attempts_max::integer,
        :answer_us::bigint, :tombstone_us::bigint, :after_expiry::smallint, 0
    FROM clock
    WHERE clock.now IS NOT NULL AND NOT EXISTS (SELECT FROM semel_record WHERE id = :id::bytea)
        AND pg_try_advisory_xact_lock(:lock::bigint # ('semel_record'::regclass::oid::bigint << 32))
    ON CONFLICT (id) DO NOTHING
    RETURNING id, xmin = pg_current_xact_id()::xid AS outermost
)
SELECT
    clock.now / coalesce(won.outermost::integer, 1), coalesce(won.id, r.id), r.format, r.tenant, r.caller, r.operation,
    r.key_hash, r.recipe, r.fingerprint, r.state, r.effects, r.fence, r.nonce, r.holder, r.attempt, r.lapses,
    r.generation, r.operation_id, r.created_at, r.first_started_at, r.lease_until, r.deadline_at, r.dedup_until,
    r.lease_us, r.attempts_max, r.answer_us, r.tombstone_us, r.after_expiry, r.settled_at, r.answer_until,
    r.forget_after, r.doubt, r.business_ref, r.resource_type, r.resource_id, r.error_code, r.answer_kind,
    r.answer_digest, r.sealing_key_id, r.status, r.headers, r.request, r.body
FROM clock
LEFT JOIN won ON true
LEFT JOIN semel_record AS r ON r.id = :id::bytea AND clock.now IS NOT NULL
WHERE clock.now IS NULL OR won.id IS NOT NULL OR r.id IS NOT NULL;

-- name: lock_in_unit
-- Try the lock before an ATOMIC unit overwrites an existing record; never wait, and hold it to the unit's end.
SELECT pg_try_advisory_xact_lock(:lock::bigint # ('semel_record'::regclass::oid::bigint << 32))::integer;

-- name: look (planned once)
-- The records of these ids, and the time to decide by. With the id of a store: no row if the server has another store
-- by now.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
SELECT
    clock.now, r.id, r.format, r.tenant, r.caller, r.operation, r.key_hash, r.recipe, r.fingerprint, r.state,
    r.effects, r.fence, r.nonce, r.holder, r.attempt, r.lapses, r.generation, r.operation_id, r.created_at,
    r.first_started_at, r.lease_until, r.deadline_at, r.dedup_until, r.lease_us, r.attempts_max, r.answer_us,
    r.tombstone_us, r.after_expiry, r.settled_at, r.answer_until, r.forget_after, r.doubt, r.business_ref,
    r.resource_type, r.resource_id, r.error_code, r.answer_kind, r.answer_digest, r.sealing_key_id, r.status,
    r.headers, r.request, r.body
FROM clock, semel_record AS r
WHERE r.id = ANY(:ids::bytea[])
    AND (:store::text IS NULL OR :store::text = (SELECT store_id FROM semel_meta WHERE one = 1));

-- name: look_kept (planned once)
-- The columns that a replay needs of these records (core/decide.KEPT_COLUMNS), the time, and whether the times are
-- valid. core/record.is_sound also checks the columns' types, which the table ensures here. No row if the server has
-- another store by now.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
SELECT
    clock.now,
    ((r.fence | r.created_at | r.first_started_at | r.lease_until | r.deadline_at | r.dedup_until
        | coalesce(r.settled_at, 0) | coalesce(r.answer_until, 0)) >> 57 = 0)::integer,
    r.fingerprint, r.recipe, r.answer_kind, r.id, r.format, r.state, r.answer_until, r.operation_id, r.answer_digest,
    r.status, r.headers, r.body
FROM clock, semel_record AS r
WHERE r.id = ANY(:ids::bytea[])
    AND (:store::text IS NULL OR :store::text = (SELECT store_id FROM semel_meta WHERE one = 1));

-- name: read (planned once)
-- The whole records of these ids, columns in the order of model.Record.
SELECT
    id, format, tenant, caller, operation, key_hash, recipe, fingerprint, state, effects, fence, nonce, holder,
    attempt, lapses, generation, operation_id, created_at, first_started_at, lease_until, deadline_at, dedup_until,
    lease_us, attempts_max, answer_us, tombstone_us, after_expiry, settled_at, answer_until, forget_after, doubt,
    business_ref, resource_type, resource_id, error_code, answer_kind, answer_digest, sealing_key_id, status, headers,
    request, body
FROM semel_record
WHERE id = ANY(:ids::bytea[]);

-- name: settle (planned once)
-- Settle holders' open records. Changes no row if the fence or nonce is no longer the record's, or the record is no
-- longer open: then read it and decide. It joins by an array, so that PostgreSQL cannot walk the whole index in order.
-- For a plain join it would plan that while the table is empty, and keep the plan.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
)
UPDATE semel_record AS r SET
    state = u.state,
    settled_at = clock.now,
    answer_until = clock.now + r.answer_us,
    forget_after = clock.now + greatest(r.answer_us, r.tombstone_us),
    doubt = u.doubt,
    error_code = u.error_code,
    business_ref = u.business_ref,
    resource_type = u.resource_type,
    resource_id = u.resource_id,
    answer_kind = u.answer_kind,
    answer_digest = u.answer_digest,
    status = u.status,
    headers = u.headers,
    request = NULL,
    body = u.body
FROM clock, unnest(
    :id::bytea[], :fence::bigint[], :nonce::bytea[], :state::smallint[], :doubt::text[], :error_code::text[],
    :business_ref::text[], :resource_type::text[], :resource_id::text[], :answer_kind::smallint[],
    :answer_digest::bytea[], :status::integer[], :headers::bytea[], :body::bytea[]
) AS u (
    id, fence, nonce, state, doubt, error_code, business_ref, resource_type, resource_id, answer_kind, answer_digest,
    status, headers, body
)
WHERE r.id = ANY (ARRAY[u.id]) AND r.fence = u.fence AND r.nonce = u.nonce AND r.state IN (1, 2) AND r.lease_until > 0
RETURNING r.id;

-- name: settle_in_unit
-- The same for one record inside an ATOMIC unit. The claim must be this transaction's own; a claim that another one
-- committed was committed early. Nonce and xmin prove that by themselves; the fence is named as in every holder's
-- write. If nothing is settled it divides by zero, so that the server refuses to commit the rest. It returns whether it
-- ran outside any savepoint.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
),
settled AS (
    UPDATE semel_record AS r SET
        state = :state::smallint,
        settled_at = clock.now,
        answer_until = clock.now + r.answer_us,
        forget_after = clock.now + greatest(r.answer_us, r.tombstone_us),
        doubt = :doubt::text,
        error_code = :error_code::text,
        business_ref = :business_ref::text,
        resource_type = :resource_type::text,
        resource_id = :resource_id::text,
        answer_kind = :answer_kind::smallint,
        answer_digest = :answer_digest::bytea,
        status = :status::integer,
        headers = :headers::bytea,
        request = NULL,
        body = :body::bytea
    FROM clock
    WHERE r.id = :id::bytea AND r.fence = :fence::bigint AND r.nonce = :nonce::bytea AND r.state IN (1, 2)
        AND r.lease_until > 0 AND r.xmin = pg_current_xact_id()::xid
    RETURNING r.xmin = pg_current_xact_id()::xid AS outermost
)
SELECT 1 / count(*), bool_and(outermost) FROM settled;

-- name: write_record (planned once)
-- Replace every column that may change, by compare-and-set on the version that was read, and on its list of steps if
-- the grant depends on it (empty: none). List a record that becomes UNKNOWN for operators.
WITH written AS (
    UPDATE semel_record SET
        recipe = :recipe::text, fingerprint = :fingerprint::bytea, state = :state::smallint, effects =
        :effects::smallint, fence = :fence::bigint, nonce = :nonce::bytea, holder = :holder::text, attempt =
        :attempt::integer, lapses = :lapses::integer, generation = :generation::integer, operation_id =
        :operation_id::bytea, created_at = :created_at::bigint, first_started_at = :first_started_at::bigint,
        lease_until = :lease_until::bigint, deadline_at = :deadline_at::bigint, dedup_until = :dedup_until::bigint,
        lease_us = :lease_us::bigint, attempts_max = :attempts_max::integer, answer_us = :answer_us::bigint,
        tombstone_us = :tombstone_us::bigint, after_expiry = :after_expiry::smallint, settled_at =
        :settled_at::bigint, answer_until = :answer_until::bigint, forget_after = :forget_after::bigint, doubt =
        :doubt::text, business_ref = :business_ref::text, resource_type = :resource_type::text, resource_id =
        :resource_id::text, error_code = :error_code::text, answer_kind = :answer_kind::smallint, answer_digest =
        :answer_digest::bytea, sealing_key_id = :sealing_key_id::text, status = :status::integer, headers =
        :headers::bytea, request = :request::bytea, body = :body::bytea
    WHERE id = :id::bytea AND fence = :seen_fence::bigint AND nonce = :seen_nonce::bytea
        AND state = :seen_state::smallint AND lease_until = :seen_lease_until::bigint
        AND answer_kind = :seen_answer_kind::smallint AND doubt IS NOT DISTINCT FROM :seen_doubt::text
        AND (:seen_steps::bytea IS NULL OR coalesce(steps, ''::bytea) = :seen_steps::bytea)
    RETURNING id, state
),
raised AS (
    INSERT INTO semel_attention (id) SELECT id FROM written WHERE state = 6 ON CONFLICT (id) DO NOTHING
)
SELECT count(*) FROM written;

-- name: resolve_record
-- The same, with its line of the audit trail: both or neither. Its flow has held the row's lock since it read the
-- steps, so both the lock and the comparison keep out other writes.
WITH written AS (
    UPDATE semel_record SET
        recipe = :recipe::text, fingerprint = :fingerprint::bytea, state = :state::smallint, effects =
        :effects::smallint, fence = :fence::bigint, nonce = :nonce::bytea, holder = :holder::text, attempt =
        :attempt::integer, lapses = :lapses::integer, generation = :generation::integer, operation_id =
        :operation_id::bytea, created_at = :created_at::bigint, first_started_at = :first_started_at::bigint,
        lease_until = :lease_until::bigint, deadline_at = :deadline_at::bigint, dedup_until = :dedup_until::bigint,
        lease_us = :lease_us::bigint, attempts_max = :attempts_max::integer, answer_us = :answer_us::bigint,
        tombstone_us = :tombstone_us::bigint, after_expiry = :after_expiry::smallint, settled_at =
        :settled_at::bigint, answer_until = :answer_until::bigint, forget_after = :forget_after::bigint, doubt =
        :doubt::text, business_ref = :business_ref::text, resource_type = :resource_type::text, resource_id =
        :resource_id::text, error_code = :error_code::text, answer_kind = :answer_kind::smallint, answer_digest =
        :answer_digest::bytea, sealing_key_id = :sealing_key_id::text, status = :status::integer, headers =
        :headers::bytea, request = :request::bytea, body = :body::bytea
    WHERE id = :id::bytea AND fence = :seen_fence::bigint AND nonce = :seen_nonce::bytea
        AND state = :seen_state::smallint AND lease_until = :seen_lease_until::bigint
        AND answer_kind = :seen_answer_kind::smallint AND doubt IS NOT DISTINCT FROM :seen_doubt::text
    RETURNING id, state
),
raised AS (
    INSERT INTO semel_attention (id) SELECT id FROM written WHERE state = 6 ON CONFLICT (id) DO NOTHING
),
noted AS (
    INSERT INTO semel_audit (at, record_id, actor, action, reason, fence)
    SELECT :at::bigint, id, :actor::text, :action::text, :reason::text, :fence::bigint FROM written
)
SELECT count(*) FROM written;
