-- Commands with many effects: steps, operations, events, handled messages, items. Each part is one noun's.
-- Nothing here is written by a command that declares none of them. DDL commits by itself here: every line can be
-- run again.

-- === steps: recovery points of one execution, written by its holder alone, under its fence ===
-- A packed list (rules/steps.py), whole with each write; of another generation it means nothing.
ALTER TABLE semel_record ADD COLUMN IF NOT EXISTS steps LONGBLOB;

-- === operations: what was executed, under a name of the business, for longer than any key ===
CREATE TABLE IF NOT EXISTS semel_operation (
    operation_id  BINARY(16)   NOT NULL PRIMARY KEY,  -- UUIDv7
    record_id     BINARY(16)   NOT NULL,              -- of the key that it was asked for with
    tenant        VARCHAR(191) NOT NULL,
    caller        TEXT         NOT NULL,
    operation     VARCHAR(191) NOT NULL,
    business_ref  VARCHAR(191),                       -- one open or successful execution for each
    state         SMALLINT     NOT NULL,
    resource_type TEXT,
    resource_id   TEXT,
    error_code    TEXT,
    created_at    BIGINT       NOT NULL,
    settled_at    BIGINT,
    forget_after  BIGINT,
    UNIQUE KEY semel_operation_ref (tenant, operation, business_ref),
    KEY semel_operation_record (record_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- === events: the outbox, written in the transaction of what they tell ===
-- The first six columns after seq are those that Debezium's outbox event router reads by default.
CREATE TABLE IF NOT EXISTS semel_event (
    seq           BIGINT       NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id            CHAR(36)     NOT NULL,              -- derived: the same for every run of the same execution
    aggregatetype TEXT         NOT NULL,
    aggregateid   TEXT         NOT NULL,              -- the order of its events is kept
    type          TEXT         NOT NULL,
    payload       LONGBLOB     NOT NULL,
    topic         TEXT         NOT NULL,
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
    KEY semel_event_due (lane, published_at, seq),
    KEY semel_event_published (published_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS semel_lane (
    lane        SMALLINT NOT NULL PRIMARY KEY,
    holder      TEXT     NOT NULL,
    fence       BIGINT   NOT NULL,
    lease_until BIGINT   NOT NULL
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
    record_id   BINARY(16)   NOT NULL,
    generation  INT          NOT NULL,
    place       BIGINT       NOT NULL,                -- from 0, in the order of the request
    item_id     VARCHAR(255) NOT NULL,                -- the client's name for it, or one derived from its content
    state       SMALLINT     NOT NULL,
    target_id   TEXT,
    result_id   TEXT,
    error_code  TEXT,
    retryable   SMALLINT     NOT NULL,
    detail      LONGBLOB,
    settled_at  BIGINT       NOT NULL,
    PRIMARY KEY (record_id, generation, place),
    UNIQUE KEY semel_item_id (record_id, generation, item_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
