-- What `semel doctor` asks a PostgreSQL server about room, by name. Nothing here writes.

-- name: table_room
-- The bytes of the records' table with its indexes, and the planner's estimate of its live and dead rows.
SELECT pg_total_relation_size('semel_record'::regclass), n_live_tup, n_dead_tup
FROM pg_stat_user_tables
WHERE relid = 'semel_record'::regclass;

-- name: connections
-- How many clients are connected to the server, and how many may be, without the slots for superusers.
SELECT
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint;

-- name: other_tables
-- Tables whose rows are not as durable as the record, or not in its commit: unlogged (u) and foreign ones (f).
SELECT c.relname::text, CASE c.relkind WHEN 'f' THEN 'f' ELSE 'u' END
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE (c.relkind = 'f' OR (c.relkind IN ('r', 'p') AND c.relpersistence = 'u')) AND c.relname <> 'semel_turn'
    AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg~_toast%' ESCAPE '~'
ORDER BY c.relname LIKE 'semel~_%' ESCAPE '~' DESC, c.relname
LIMIT 100;
