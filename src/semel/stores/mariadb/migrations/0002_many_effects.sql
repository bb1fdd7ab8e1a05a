-- Commands with many effects: steps, operations, events, handled messages, items. Each part is one noun's.
-- Nothing here is written by a command that declares none of them. DDL commits by itself here: every line can be
-- run again.

-- === steps: recovery points of one execution, written by its holder alone, under its fence ===
-- A packed list (steps/rules.py), whole with each write; of another generation it means nothing.
ALTER TABLE semel_record ADD COLUMN IF NOT EXISTS steps LONGBLOB;

-- === operations: executions under business names, remembered for longer than any key ===
CREATE TABLE IF NOT EXISTS semel_operation (
    operation_id  BINARY(16) NOT NULL PRIMARY KEY,  -- UUIDv7
    record_id     BINARY(16) NOT NULL,              -- of the key that it was asked for with
    tenant        TEXT       NOT NULL,
    caller        TEXT       NOT NULL,
    operation     TEXT       NOT NULL,
    business_ref  TEXT,
    ref_id        BINARY(16),                       -- digest of tenant, operation and business reference
    holds         BINARY(16),                       -- the same while it is open, unknown or successful: one for each
    state         SMALLINT   NOT NULL,
    resource_type TEXT,
    resource_id   TEXT,
    error_code    TEXT,
    keep_us       BIGINT     NOT NULL,              -- how long it is remembered once it is settled
    created_at    BIGINT     NOT NULL,
    settled_at    BIGINT,
    forget_after  BIGINT,
    UNIQUE KEY semel_operation_holds (holds),
    KEY semel_operation_ref (ref_id, operation_id),
    KEY semel_operation_record (record_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- === reconciliations: how often reconcilers asked about an UNKNOWN record, and which one asks now ===
CREATE TABLE IF NOT EXISTS semel_reconciliation (
    record_id   BINARY(16) NOT NULL PRIMARY KEY,
    fence       BIGINT     NOT NULL,                -- of the record that was asked about: another one begins anew
    asked       INT        NOT NULL,
    next_at     BIGINT     NOT NULL,
    token       BINARY(16) NOT NULL,                -- of the worker that asks
    lease_until BIGINT     NOT NULL,
    gave_up_at  BIGINT,                             -- an operator must find out
    reason      TEXT       NOT NULL,
    updated_at  BIGINT     NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- === events: the outbox, written in the transaction of the change that they report ===
-- The columns id to payload are those that Debezium's outbox event router reads by default.
CREATE TABLE IF NOT EXISTS semel_event (
    seq           BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id            CHAR(36)     NOT NULL,              -- derived: the same for every run of the same execution
    aggregatetype VARCHAR(255) NOT NULL,
    aggregateid   VARCHAR(255) NOT NULL,              -- the order of its events is kept
    type          VARCHAR(255) NOT NULL,
    payload       LONGBLOB     NOT NULL,
    topic         VARCHAR(255) NOT NULL,
    headers       LONGBLOB     NOT NULL,
    tenant        TEXT         NOT NULL,
    lane          SMALLINT     NOT NULL,              -- a digest of the aggregate: one relay at a time delivers a lane
    operation_id  BINARY(16),
    created_at    BIGINT       NOT NULL,
    tries         INT          NOT NULL DEFAULT 0,
    next_at       BIGINT       NOT NULL DEFAULT 0,
    parked_at     BIGINT,
    reason        TEXT,
    published_at  BIGINT,
    UNIQUE KEY semel_event_id (id),
    KEY semel_event_due (published_at, seq),
    KEY semel_event_stuck (published_at, tries, aggregateid, aggregatetype, seq)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS semel_lane (
    lane        SMALLINT     NOT NULL PRIMARY KEY,
    holder      VARCHAR(191) NOT NULL,
    fence       BIGINT       NOT NULL,
    lease_until BIGINT       NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

INSERT IGNORE INTO semel_lane (lane, holder, fence, lease_until) VALUES
    (0, '', 0, 0), (1, '', 0, 0), (2, '', 0, 0), (3, '', 0, 0), (4, '', 0, 0), (5, '', 0, 0),
    (6, '', 0, 0), (7, '', 0, 0), (8, '', 0, 0), (9, '', 0, 0), (10, '', 0, 0), (11, '', 0, 0),
    (12, '', 0, 0), (13, '', 0, 0), (14, '', 0, 0), (15, '', 0, 0), (16, '', 0, 0), (17, '', 0, 0),
    (18, '', 0, 0), (19, '', 0, 0), (20, '', 0, 0), (21, '', 0, 0), (22, '', 0, 0), (23, '', 0, 0),
    (24, '', 0, 0), (25, '', 0, 0), (26, '', 0, 0), (27, '', 0, 0), (28, '', 0, 0), (29, '', 0, 0),
    (30, '', 0, 0), (31, '', 0, 0);

CREATE TABLE IF NOT EXISTS semel_relay (
    holder      VARCHAR(191) NOT NULL PRIMARY KEY,
    lease_until BIGINT       NOT NULL,
    bell_until  BIGINT       NOT NULL                 -- it listens until then; a bell that only PostgreSQL has
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- === inbox: which messages a consumer has handled, written in the transaction of their effect ===
CREATE TABLE IF NOT EXISTS semel_inbox (
    consumer     VARCHAR(191) NOT NULL,
    message_id   VARCHAR(500) NOT NULL,
    handled_at   BIGINT,                              -- none yet: it was tried and failed
    tries        INT          NOT NULL,
    parked_at    BIGINT,
    reason       TEXT,
    forget_after BIGINT       NOT NULL,
    PRIMARY KEY (consumer, message_id),
    KEY semel_inbox_forget (forget_after)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- === items: the lines of bulk commands, each with an outcome of its own ===
CREATE TABLE IF NOT EXISTS semel_item (
    operation_id BINARY(16)   NOT NULL,
    place        BIGINT       NOT NULL,  -- from 0, in the order of the request
    item_id      VARCHAR(255) NOT NULL,  -- the client's name for it, or one derived from its content
    state        SMALLINT     NOT NULL,
    target_id    TEXT,
    result_id    TEXT,
    error_code   TEXT,
    retryable    SMALLINT     NOT NULL,
    detail       LONGBLOB,
    settled_at   BIGINT       NOT NULL,
    PRIMARY KEY (operation_id, place),
    UNIQUE KEY semel_item_id (operation_id, item_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- How far each bulk is, counted in the transactions of its items.
CREATE TABLE IF NOT EXISTS semel_bulk (
    operation_id BINARY(16)   NOT NULL,
    total        BIGINT       NOT NULL,
    done         BIGINT       NOT NULL,  -- the first so many items have an outcome, or have begun
    succeeded    BIGINT       NOT NULL,
    failed       BIGINT       NOT NULL,
    retryable    BIGINT       NOT NULL,
    unknown      BIGINT       NOT NULL,
    created_at   BIGINT       NOT NULL,
    touched_at   BIGINT       NOT NULL,
    PRIMARY KEY (operation_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
