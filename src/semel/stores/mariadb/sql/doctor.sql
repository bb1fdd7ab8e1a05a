-- What `semel doctor` asks a MariaDB server about room, rights and its defaults, by name. Nothing here writes.

-- name: table_room
-- The records' table with its indexes in bytes, and about how many rows it has.
SELECT COALESCE(SUM(data_length + index_length), 0), COALESCE(SUM(table_rows), 0)
FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name = 'semel_record';

-- name: connections
-- How many clients are connected to the server, and how many may be.
SELECT variable_value, @@GLOBAL.max_connections
FROM information_schema.global_status
WHERE variable_name = 'THREADS_CONNECTED';

-- name: defaults
-- The settings with which a handler's own connection, and that of an ATOMIC unit, begins.
SELECT @@GLOBAL.sql_mode, @@GLOBAL.tx_isolation;

-- name: rights
-- This user's rights on the records, and its current role (NULL: none).
SELECT DISTINCT privilege_type, CURRENT_ROLE()
FROM (
    SELECT grantee, privilege_type FROM information_schema.user_privileges
    UNION ALL
    SELECT grantee, privilege_type FROM information_schema.schema_privileges WHERE DATABASE() LIKE table_schema
    UNION ALL
    SELECT grantee, privilege_type FROM information_schema.table_privileges
    WHERE table_schema = DATABASE() AND table_name = 'semel_record'
) AS held
WHERE grantee = CONCAT('''', SUBSTRING_INDEX(CURRENT_USER(), '@', 1), '''@''', SUBSTRING_INDEX(CURRENT_USER(), '@', -1), '''');

-- name: other_engines
-- The database's tables without transactions, with their engine. An ATOMIC handler's writes there are not rolled back.
SELECT t.table_name, t.engine
FROM information_schema.tables AS t
LEFT JOIN information_schema.engines AS e ON e.engine = t.engine
WHERE t.table_schema = DATABASE() AND t.table_type = 'BASE TABLE' AND COALESCE(e.transactions, 'NO') <> 'YES'
ORDER BY t.table_name LIKE 'semel~_%' ESCAPE '~' DESC, t.table_name
LIMIT 100;
