-- Commands with many effects: steps, operations, events, handled messages, items. Each part is one noun's.
-- Nothing here is written by a command that declares none of them.

-- === steps: recovery points of one execution, written by its holder alone, under its fence ===
-- A packed list (rules/steps.py), whole with each write; of another generation it means nothing.
ALTER TABLE semel_record ADD COLUMN steps BLOB;

-- === operations: what was executed, under a name of the business, for longer than any key ===
CREATE TABLE semel_operation (
    operation_id  BLOB    NOT NULL PRIMARY KEY,  -- UUIDv7
    record_id     BLOB    NOT NULL,              -- of the key that it was asked for with
    tenant        TEXT    NOT NULL,
    caller        TEXT    NOT NULL,
    operation     TEXT    NOT NULL,
    business_ref  TEXT,                          -- one open or successful execution for each, within tenant and operation
    state         INTEGER NOT NULL,
    resource_type TEXT,
    resource_id   TEXT,
    error_code    TEXT,
    created_at    INTEGER NOT NULL,
    settled_at    INTEGER,
    forget_after  INTEGER
);

CREATE UNIQUE INDEX semel_operation_ref ON semel_operation (tenant, operation, business_ref)
WHERE business_ref IS NOT NULL;

CREATE INDEX semel_operation_record ON semel_operation (record_id);

-- === events: the outbox, written in the transaction of what they tell ===
-- The first six columns after seq are those that Debezium's outbox event router reads by default.
CREATE TABLE semel_event (
    seq           INTEGER PRIMARY KEY,
    id            TEXT    NOT NULL UNIQUE,       -- derived: the same for every run of the same execution
    aggregatetype TEXT    NOT NULL,
    aggregateid   TEXT    NOT NULL,              -- the order of its events is kept
    type          TEXT    NOT NULL,
    payload       BLOB    NOT NULL,
    topic         TEXT    NOT NULL,
    headers       BLOB    NOT NULL,
    tenant        TEXT    NOT NULL,
    lane          INTEGER NOT NULL,              -- a digest of the aggregate: one relay at a time delivers a lane
    operation_id  BLOB,
    created_at    INTEGER NOT NULL,
    tries         INTEGER NOT NULL DEFAULT 0,
    next_at       INTEGER NOT NULL DEFAULT 0,
    parked_at     INTEGER,
    reason        TEXT,
    published_at  INTEGER
);

CREATE INDEX semel_event_due ON semel_event (lane, seq) WHERE published_at IS NULL;

CREATE INDEX semel_event_published ON semel_event (published_at) WHERE published_at IS NOT NULL;

CREATE TABLE semel_lane (
    lane        INTEGER PRIMARY KEY,
    holder      TEXT    NOT NULL,
    fence       INTEGER NOT NULL,
    lease_until INTEGER NOT NULL
);

-- === inbox: which messages a consumer has handled, written in the transaction of their effect ===
CREATE TABLE semel_inbox (
    consumer     TEXT    NOT NULL,
    message_id   TEXT    NOT NULL,
    handled_at   INTEGER,                        -- none yet: it was tried and failed
    tries        INTEGER NOT NULL,
    parked_at    INTEGER,
    reason       TEXT,
    forget_after INTEGER NOT NULL,
    PRIMARY KEY (consumer, message_id)
) WITHOUT ROWID;

CREATE INDEX semel_inbox_forget ON semel_inbox (forget_after);

-- === items: the lines of bulk commands, each with an outcome of its own ===
CREATE TABLE semel_item (
    record_id   BLOB    NOT NULL,
    generation  INTEGER NOT NULL,
    place       INTEGER NOT NULL,                -- from 0, in the order of the request
    item_id     TEXT    NOT NULL,                -- the client's name for it, or one derived from its content
    state       INTEGER NOT NULL,
    target_id   TEXT,
    result_id   TEXT,
    error_code  TEXT,
    retryable   INTEGER NOT NULL,
    detail      BLOB,
    settled_at  INTEGER NOT NULL,
    PRIMARY KEY (record_id, generation, place)
) WITHOUT ROWID;

CREATE UNIQUE INDEX semel_item_id ON semel_item (record_id, generation, item_id);
