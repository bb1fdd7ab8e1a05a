-- What `semel doctor` asks a PostgreSQL server about room, by name. Nothing here writes.

-- name: table_room
-- The records' table with its indexes in bytes, and the planner's idea of its living and dead rows.
SELECT pg_total_relation_size('semel_record'::regclass), n_live_tup, n_dead_tup
FROM pg_stat_user_tables
WHERE relid = 'semel_record'::regclass;

-- name: connections
-- How many clients are connected to the server, and how many may be beside those kept for superusers.
SELECT
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint;
