-- Imports: files that suppliers sent, each known by its key; their names, their bytes and the rows that were booked.
-- Nothing here is written where no imports are declared.

CREATE TABLE semel_import (
    id              BLOB NOT NULL PRIMARY KEY,  -- UUIDv7
    tenant          TEXT NOT NULL,
    operation       TEXT NOT NULL,
    supplier        TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,  -- readable: supplier:digest, or what the keying strategy makes
    generation      INTEGER NOT NULL,  -- how often an operator had the same bytes processed again
    sha256          BLOB NOT NULL,  -- of the file's bytes
    bytes           INTEGER NOT NULL,
    media_type      TEXT NOT NULL,
    recipe          TEXT NOT NULL,  -- how rows are read and made canonical, with its version
    state           INTEGER NOT NULL,  -- 1 QUEUED, 2 RUNNING, 3 DONE, 5 FAILED, 6 UNKNOWN
    attempts        INTEGER NOT NULL,
    next_at         INTEGER NOT NULL,  -- no process takes it before: it runs elsewhere, or waits after a failure
    error_code      TEXT,
    reason          TEXT,
    row_count       INTEGER,  -- the counts are written when the job is over; before, its bulk has them
    booked          INTEGER,
    skipped         INTEGER NOT NULL,  -- counted in the transactions that skip
    failed          INTEGER,
    unknown         INTEGER,
    submissions     INTEGER NOT NULL,
    bulk_id         BLOB,  -- the operation id of the bulk that has the rows
    content_ref     TEXT,  -- where the bytes are; none: they are no longer kept
    content_until   INTEGER,
    keep_content_us INTEGER NOT NULL,
    keep_us         INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    last_seen_at    INTEGER NOT NULL,
    started_at      INTEGER,
    ended_at        INTEGER,
    forget_after    INTEGER
);

CREATE UNIQUE INDEX semel_import_key ON semel_import (tenant, operation, idempotency_key);

CREATE INDEX semel_import_due ON semel_import (next_at) WHERE state IN (1, 2);

CREATE INDEX semel_import_content_until ON semel_import (content_until) WHERE content_until IS NOT NULL;

CREATE INDEX semel_import_forget ON semel_import (forget_after) WHERE forget_after IS NOT NULL;

CREATE INDEX semel_import_sha256 ON semel_import (sha256);

-- The file names that a job's bytes came under: data of the client's, never a path.
CREATE TABLE semel_import_name (
    import_id     BLOB NOT NULL,
    name          TEXT NOT NULL,
    times         INTEGER NOT NULL,
    first_seen_at INTEGER NOT NULL,
    last_seen_at  INTEGER NOT NULL,
    PRIMARY KEY (import_id, name)
) WITHOUT ROWID;

-- Rows that were booked: only of imports with rows="skip-known". One row is one digest, whatever file it came in.
CREATE TABLE semel_import_row (
    id           BLOB NOT NULL PRIMARY KEY,  -- SHA-256 of tenant, operation, supplier, row and occurrence
    import_id    BLOB NOT NULL,
    place        INTEGER NOT NULL,
    forget_after INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX semel_import_row_forget ON semel_import_row (forget_after);

-- Kept bytes by their digest, in parts; not whole: a process is writing them, or has died of it.
CREATE TABLE semel_import_blob (
    sha256     BLOB NOT NULL PRIMARY KEY,
    bytes      INTEGER NOT NULL,
    whole      INTEGER NOT NULL,
    touched_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE semel_import_part (
    sha256 BLOB NOT NULL,
    place  INTEGER NOT NULL,
    body   BLOB NOT NULL,
    PRIMARY KEY (sha256, place)
);
