-- Imports: files that suppliers sent, each known by its key; their names, their bytes and the rows that were booked.
-- Nothing here is written where no imports are declared.

CREATE TABLE semel_import (
    id              bytea NOT NULL PRIMARY KEY,  -- UUIDv7
    tenant          text NOT NULL,
    operation       text NOT NULL,
    supplier        text NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,  -- readable: supplier:digest, or what the keying strategy makes
    generation      bigint NOT NULL,  -- how often an operator had the same bytes processed again
    sha256          bytea NOT NULL,  -- of the file's bytes
    bytes           bigint NOT NULL,
    media_type      text NOT NULL,
    recipe          text NOT NULL,  -- how rows are read and made canonical, with its version
    state           smallint NOT NULL,  -- 1 QUEUED, 2 RUNNING, 3 DONE, 5 FAILED, 6 UNKNOWN
    attempts        bigint NOT NULL,
    next_at         bigint NOT NULL,  -- no process takes it before: it runs elsewhere, or waits after a failure
    error_code      text,
    reason          text,
    row_count       bigint,  -- the counts are written when the job is over; before, its bulk has them
    booked          bigint,
    skipped         bigint NOT NULL,  -- counted in the transactions that skip
    failed          bigint,
    unknown         bigint,
    submissions     bigint NOT NULL,
    bulk_id         bytea,  -- the operation id of the bulk that has the rows
    content_ref     text,  -- where the bytes are; none: they are no longer kept
    content_until   bigint,
    keep_content_us bigint NOT NULL,
    keep_us         bigint NOT NULL,
    created_at      bigint NOT NULL,
    last_seen_at    bigint NOT NULL,
    started_at      bigint,
    ended_at        bigint,
    forget_after    bigint
);

CREATE UNIQUE INDEX semel_import_key ON semel_import (tenant, operation, idempotency_key);

CREATE INDEX semel_import_due ON semel_import (next_at) WHERE state IN (1, 2);

CREATE INDEX semel_import_content_until ON semel_import (content_until) WHERE content_until IS NOT NULL;

CREATE INDEX semel_import_forget ON semel_import (forget_after) WHERE forget_after IS NOT NULL;

CREATE INDEX semel_import_sha256 ON semel_import (sha256);

-- The file names that a job's bytes came under: data of the client's, never a path.
CREATE TABLE semel_import_name (
    import_id     bytea NOT NULL,
    name          text NOT NULL,
    times         bigint NOT NULL,
    first_seen_at bigint NOT NULL,
    last_seen_at  bigint NOT NULL,
    PRIMARY KEY (import_id, name)
);

-- Rows that were booked: only of imports with rows="skip-known". One row is one digest, whatever file it came in.
CREATE TABLE semel_import_row (
    id           bytea NOT NULL PRIMARY KEY,  -- SHA-256 of tenant, operation, supplier, row and occurrence
    import_id    bytea NOT NULL,
    place        bigint NOT NULL,
    forget_after bigint NOT NULL
);

CREATE INDEX semel_import_row_forget ON semel_import_row (forget_after);

-- Kept bytes by their digest, in parts; not whole: a process is writing them, or has died of it.
CREATE TABLE semel_import_blob (
    sha256     bytea NOT NULL PRIMARY KEY,
    bytes      bigint NOT NULL,
    whole      smallint NOT NULL,
    touched_at bigint NOT NULL
);

CREATE TABLE semel_import_part (
    sha256 bytea NOT NULL,
    place  bigint NOT NULL,
    body   bytea NOT NULL,
    PRIMARY KEY (sha256, place)
);
