-- What `semel doctor` asks a SQLite file, by name. Nothing here writes.

-- name: journal_mode
-- How the file's transactions are kept: "wal" is what Semel sets.
PRAGMA journal_mode;

-- name: quick_check
-- "ok", or the first damage that is found.
PRAGMA quick_check(1);
