-- What `semel doctor` and `semel migrate` ask of the tables, by name: their columns, as this user sees them.

-- name: columns_postgres
-- (table, column) of every table that a statement of the store would find on the search_path.
SELECT c.relname, a.attname
FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE left(c.relname, 6) = 'semel_' AND c.relkind IN ('r', 'p') AND pg_table_is_visible(c.oid)
ORDER BY c.relname, a.attnum;

-- name: columns_mariadb
-- (table, column) of this database.
SELECT table_name, column_name
FROM information_schema.columns
WHERE table_schema = DATABASE() AND left(table_name, 6) = 'semel_'
ORDER BY table_name, ordinal_position;

-- name: columns_sqlite
-- (table, column) of this file.
SELECT m.name, c.name
FROM sqlite_schema AS m
JOIN pragma_table_info(m.name) AS c
WHERE m.type = 'table' AND substr(m.name, 1, 6) = 'semel_'
ORDER BY m.name, c.cid;
