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
-- What a handler's own connection, and that of an ATOMIC unit, begins with.
SELECT @@GLOBAL.sql_mode, @@GLOBAL.tx_isolation;

-- name: rights
-- The rights of this user that reach the records, and the role that it has taken on (NULL: none).
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
