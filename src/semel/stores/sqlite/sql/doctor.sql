-- What `semel doctor` asks a SQLite file, by name. Nothing here writes.

-- name: journal_mode
-- How the file's transactions are kept: "wal" is what Semel sets.
PRAGMA journal_mode;

-- name: synchronous
-- 0 OFF, 1 NORMAL, 2 FULL, 3 EXTRA: as this connection was opened.
PRAGMA synchronous;

-- name: quick_check
-- "ok", or the first damage that is found.
PRAGMA quick_check(1);

-- name: overdue
-- What is overdue for the purge: how many records, how many answers, and the oldest such time.
SELECT
    count(CASE WHEN forget_after <= :by THEN 1 END),
    count(CASE WHEN forget_after > :by THEN 1 END),
    min(CASE WHEN forget_after <= :by THEN forget_after ELSE answer_until END)
FROM semel_record
WHERE forget_after <= :by OR (answer_until <= :by AND answer_kind IN (1, 3));
