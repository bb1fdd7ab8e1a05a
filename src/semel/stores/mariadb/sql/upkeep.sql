-- The statements of the MariaDB store outside a command's life: lists, the reaper's walk, purges, the schema.
-- The rules of records.sql hold here too.

-- name: find
-- A page for operators, newest first, without headers and bodies; seq is the page's cursor. One row of NULLs: none.
SELECT
    clock.now, r.seq, r.id, r.format, r.tenant, r.caller, r.operation, r.key_hash, r.recipe, r.fingerprint, r.state,
    r.effects, r.fence, r.nonce, r.holder, r.attempt, r.lapses, r.generation, r.operation_id, r.created_at,
    r.first_started_at, r.lease_until, r.deadline_at, r.dedup_until, r.lease_us, r.attempts_max, r.answer_us,
    r.tombstone_us, r.after_expiry, r.settled_at, r.answer_until, r.forget_after, r.doubt, r.business_ref,
    r.resource_type, r.resource_id, r.error_code, r.answer_kind, r.answer_digest, r.sealing_key_id, r.status
FROM (SELECT :now AS now) AS clock LEFT JOIN (
    SELECT * FROM semel_record
    WHERE seq < COALESCE(:before, 9223372036854775807) AND seq > :after
        AND state IN :states
        AND (:tenant IS NULL OR tenant = :tenant)
        AND (:caller IS NULL OR caller = :caller)
        AND (:operation IS NULL OR operation = :operation)
        AND (:lapsed = 0 OR (state IN (1, 2) AND lease_until <= :now))
    ORDER BY seq DESC
    LIMIT :limit
) AS r ON TRUE
ORDER BY r.seq DESC;

-- name: count_listed
-- Count the records that need attention, up to a limit.
SELECT COUNT(*) FROM (SELECT 1 FROM semel_attention LIMIT :look) AS listed;

-- name: read_newest
-- The cursor of the newest record.
SELECT COALESCE(MAX(seq), 0) FROM semel_record;

-- name: find_unknown
-- The same over UNKNOWN records only, by the table of those that need attention.
SELECT
    clock.now, r.seq, r.id, r.format, r.tenant, r.caller, r.operation, r.key_hash, r.recipe, r.fingerprint, r.state,
    r.effects, r.fence, r.nonce, r.holder, r.attempt, r.lapses, r.generation, r.operation_id, r.created_at,
    r.first_started_at, r.lease_until, r.deadline_at, r.dedup_until, r.lease_us, r.attempts_max, r.answer_us,
    r.tombstone_us, r.after_expiry, r.settled_at, r.answer_until, r.forget_after, r.doubt, r.business_ref,
    r.resource_type, r.resource_id, r.error_code, r.answer_kind, r.answer_digest, r.sealing_key_id, r.status
FROM (SELECT :now AS now) AS clock LEFT JOIN (
    SELECT semel_record.* FROM semel_attention AS a STRAIGHT_JOIN semel_record ON semel_record.id = a.id
    WHERE seq < COALESCE(:before, 9223372036854775807)
        AND state IN :states
        AND (:tenant IS NULL OR tenant = :tenant)
        AND (:caller IS NULL OR caller = :caller)
        AND (:operation IS NULL OR operation = :operation)
        AND (:lapsed = 0 OR (state IN (1, 2) AND lease_until <= :now))
    ORDER BY seq DESC
    LIMIT :limit
) AS r ON TRUE
ORDER BY r.seq DESC;

-- name: find_needing
-- The same for some entries of that table: UNKNOWN and open ones, equally many of each if they do not all fit.
SELECT
    clock.now, r.seq, r.id, r.format, r.tenant, r.caller, r.operation, r.key_hash, r.recipe, r.fingerprint, r.state,
    r.effects, r.fence, r.nonce, r.holder, r.attempt, r.lapses, r.generation, r.operation_id, r.created_at,
    r.first_started_at, r.lease_until, r.deadline_at, r.dedup_until, r.lease_us, r.attempts_max, r.answer_us,
    r.tombstone_us, r.after_expiry, r.settled_at, r.answer_until, r.forget_after, r.doubt, r.business_ref,
    r.resource_type, r.resource_id, r.error_code, r.answer_kind, r.answer_digest, r.sealing_key_id, r.status
FROM (SELECT :now AS now) AS clock LEFT JOIN (
    SELECT semel_record.* FROM (
        SELECT needing.seq FROM (
            SELECT n.seq, ROW_NUMBER() OVER (PARTITION BY n.state = 6 ORDER BY n.seq DESC) AS place
            FROM (SELECT id FROM semel_attention LIMIT :look) AS a STRAIGHT_JOIN semel_record AS n ON n.id = a.id
            WHERE n.state IN :states AND (:lapsed = 0 OR (n.state IN (1, 2) AND n.lease_until <= :now))
        ) AS needing
        ORDER BY needing.place LIMIT :limit
    ) AS page STRAIGHT_JOIN semel_record ON semel_record.seq = page.seq
) AS r ON TRUE
ORDER BY r.seq DESC;

-- name: scan_open
-- One page of the reaper's walk over newer records: those still open, and where the page ended. A record
-- may become visible after a younger one, so the walk stays :lag behind the clock.
SELECT page.seq, IF(page.state IN (1, 2), page.id, NULL), page.created_at + :lag < :now
FROM (SELECT seq, id, state, created_at FROM semel_record WHERE seq > :after ORDER BY seq LIMIT :page) AS page
WHERE page.state IN (1, 2)
    OR page.seq = (
        SELECT MAX(seq) FROM (SELECT seq FROM semel_record WHERE seq > :after ORDER BY seq LIMIT :page) AS whole
    )
ORDER BY page.seq;

-- name: turn
-- Take a worker's next turn, and return what the records need.
-- include: semel.stores.mariadb sql/turn.sql
;

-- name: has_turns
-- Whether the workers of this database may take turns.
SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'semel_turn';

-- name: has_waiting_messages
-- Whether the messages that were tried and not handled have their index.
SELECT COUNT(*) FROM information_schema.statistics
WHERE table_schema = DATABASE() AND table_name = 'semel_inbox' AND index_name = 'semel_inbox_open';

-- name: find_lapsed
-- Those of these, and of the ones that need attention, that are PROCESSING after their lease; oldest lease first.
SELECT :now, r.id
FROM (SELECT id FROM semel_attention UNION SELECT id FROM semel_record WHERE id IN :ids) AS seen
    STRAIGHT_JOIN semel_record AS r ON r.id = seen.id
WHERE r.state = 2 AND r.lease_until <= :now
    AND (r.effects <> 2 OR r.dedup_until <= :now OR r.lapses + (r.lease_until > 0) >= r.attempts_max)
ORDER BY r.lease_until
LIMIT :limit;

-- name: clear_attention
-- Drop entries that no longer need attention.
DELETE FROM semel_attention
WHERE NOT EXISTS (SELECT 1 FROM semel_record AS r WHERE r.id = semel_attention.id AND r.state IN (1, 2, 6));

-- name: write_horizon
-- Remember how far the walk has come.
UPDATE semel_meta SET horizon = GREATEST(horizon, :horizon);

-- name: read_horizon
-- Where a reaper that has just started begins its walk.
SELECT horizon FROM semel_meta;

-- name: purge_window
-- One chunk of the purge's walk in order of creation: its length, its end, and its expired records.
SELECT
    seq, id,
    COALESCE(forget_after + :grace <= :now, 0),
    COALESCE(answer_until + :grace <= :now AND answer_kind IN (1, 3), 0)
FROM semel_record
WHERE seq > :after
ORDER BY seq
LIMIT :chunk;

-- name: lock_due
-- Those of a chunk that no transaction is writing; the next walk takes the others.
SELECT id FROM semel_record WHERE id IN :ids ORDER BY id FOR UPDATE SKIP LOCKED;

-- name: forget
-- The tombstone's retention is over. Open and unknown records never expire and are never selected here.
DELETE FROM semel_record WHERE id IN :ids AND forget_after + :grace <= :now;

-- name: drop_answer
-- The answer's retention is over; the tombstone stays.
UPDATE semel_record SET answer_kind = 2, headers = NULL, body = NULL
WHERE id IN :ids AND answer_until + :grace <= :now AND answer_kind IN (1, 3);

-- name: count_states
-- How many of one page of records are in each state, and where the page ended.
SELECT state, COUNT(*), MAX(seq)
FROM (SELECT seq, state FROM semel_record WHERE seq > :after ORDER BY seq LIMIT :page) AS page
GROUP BY state ORDER BY state;

-- name: read_audit
-- The newest lines of the audit trail, of one record or of all.
SELECT at, record_id, actor, action, reason, fence
FROM semel_audit
WHERE :record_id IS NULL OR record_id = :record_id
ORDER BY seq DESC
LIMIT :limit;

-- name: read_now
SELECT :now;

-- name: has_meta
-- Whether this database was ever migrated.
SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'semel_meta';

-- name: read_meta
-- This store's identity.
SELECT store_id, schema_version, epoch, id_format, secret_check FROM semel_meta;

-- name: first_meta
-- The first migration writes it once.
INSERT INTO semel_meta (one, store_id, schema_version, epoch, id_format, secret_check, horizon)
VALUES (1, :store_id, :schema_version, 1, 1, :secret_check, 0)
ON DUPLICATE KEY UPDATE one = one;

-- name: write_schema_version
-- Each later migration raises it.
UPDATE semel_meta SET schema_version = :schema_version WHERE schema_version < :schema_version;

-- name: read_settings
-- The settings on which durability depends. A name that the server does not know has no row.
SHOW GLOBAL VARIABLES WHERE variable_name IN (
    'innodb_flush_log_at_trx_commit', 'innodb_flush_method', 'innodb_rollback_on_timeout', 'log_bin',
    'max_allowed_packet', 'read_only', 'sync_binlog', 'wsrep_on', 'wsrep_sync_wait'
);
