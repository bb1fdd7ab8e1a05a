-- Imports: files that suppliers sent, each known by its key; their names, their bytes and the rows that were booked.
-- Nothing here is written where no imports are declared. DDL commits by itself here: every
-- line can be run again.

CREATE TABLE IF NOT EXISTS semel_import (
    id              BINARY(16) NOT NULL PRIMARY KEY,  -- UUIDv7
    tenant          VARCHAR(255) NOT NULL,
    operation       VARCHAR(255) NOT NULL,
    supplier        VARCHAR(255) NOT NULL,
    idempotency_key VARCHAR(255) NOT NULL,  -- readable: supplier:digest, or what the keying strategy makes
    generation      BIGINT NOT NULL,  -- how often an operator had the same bytes processed again
    sha256          BINARY(32) NOT NULL,  -- of the file's bytes
    bytes           BIGINT NOT NULL,
    media_type      VARCHAR(255) NOT NULL,
    recipe          TEXT NOT NULL,  -- how rows are read and made canonical, with its version
    state           SMALLINT NOT NULL,  -- 1 QUEUED, 2 RUNNING, 3 DONE, 5 FAILED, 6 UNKNOWN
    attempts        BIGINT NOT NULL,
    next_at         BIGINT NOT NULL,  -- no process takes it before: it runs elsewhere, or waits after a failure
    error_code      VARCHAR(255),
    reason          TEXT,
    row_count       BIGINT,  -- the counts are written when the job is over; before, its bulk has them
    booked          BIGINT,
    skipped         BIGINT NOT NULL,  -- counted in the transactions that skip
    failed          BIGINT,
    unknown         BIGINT,
    submissions     BIGINT NOT NULL,
    bulk_id         BINARY(16),  -- the operation id of the bulk that has the rows
    content_ref     TEXT,  -- where the bytes are; none: they are no longer kept
    content_until   BIGINT,
    keep_content_us BIGINT NOT NULL,
    keep_us         BIGINT NOT NULL,
    created_at      BIGINT NOT NULL,
    last_seen_at    BIGINT NOT NULL,
    started_at      BIGINT,
    ended_at        BIGINT,
    forget_after    BIGINT,
    UNIQUE KEY semel_import_key (tenant, operation, idempotency_key),
    KEY semel_import_due (state, next_at),
    KEY semel_import_content_until (content_until),
    KEY semel_import_forget (forget_after),
    KEY semel_import_sha256 (sha256)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- The file names that a job's bytes came under: data of the client's, never a path.
CREATE TABLE IF NOT EXISTS semel_import_name (
    import_id     BINARY(16) NOT NULL,
    name          VARCHAR(255) NOT NULL,
    times         BIGINT NOT NULL,
    first_seen_at BIGINT NOT NULL,
    last_seen_at  BIGINT NOT NULL,
    PRIMARY KEY (import_id, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- Rows that were booked: only of imports with rows="skip-known". One row is one digest, whatever file it came in.
CREATE TABLE IF NOT EXISTS semel_import_row (
    id           BINARY(32) NOT NULL PRIMARY KEY,  -- SHA-256 of tenant, operation, supplier, row and occurrence
    import_id    BINARY(16) NOT NULL,
    place        BIGINT NOT NULL,
    forget_after BIGINT NOT NULL,
    KEY semel_import_row_forget (forget_after)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- Kept bytes by their digest, in parts; not whole: a process is writing them, or has died of it.
CREATE TABLE IF NOT EXISTS semel_import_blob (
    sha256     BINARY(32) NOT NULL PRIMARY KEY,
    bytes      BIGINT NOT NULL,
    whole      SMALLINT NOT NULL,
    touched_at BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS semel_import_part (
    sha256 BINARY(32) NOT NULL,
    place  BIGINT NOT NULL,
    body   MEDIUMBLOB NOT NULL,
    PRIMARY KEY (sha256, place)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
