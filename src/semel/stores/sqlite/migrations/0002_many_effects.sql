-- Commands with many effects: steps, operations, events, handled messages, items. Each part is one noun's.
-- Nothing here is written by a command that declares none of them.

-- === steps: recovery points of one execution, written by its holder alone, under its fence ===
-- A packed list (steps/rules.py), whole with each write; of another generation it means nothing.
ALTER TABLE semel_record ADD COLUMN steps BLOB;

-- === operations: executions under business names, remembered for longer than any key ===
CREATE TABLE semel_operation (
    operation_id  BLOB    NOT NULL PRIMARY KEY,  -- UUIDv7
    record_id     BLOB    NOT NULL,              -- of the key that it was asked for with
    tenant        TEXT    NOT NULL,
    caller        TEXT    NOT NULL,
    operation     TEXT    NOT NULL,
    business_ref  TEXT,
    ref_id        BLOB,                          -- digest of tenant, operation and business reference
    holds         BLOB,                          -- the same while it is open, unknown or successful: one for each
    state         INTEGER NOT NULL,
    resource_type TEXT,
    resource_id   TEXT,
    error_code    TEXT,
    keep_us       INTEGER NOT NULL,              -- how long it is remembered once it is settled
    created_at    INTEGER NOT NULL,
    settled_at    INTEGER,
    forget_after  INTEGER
);

CREATE UNIQUE INDEX semel_operation_holds ON semel_operation (holds) WHERE holds IS NOT NULL;

CREATE INDEX semel_operation_ref ON semel_operation (ref_id, operation_id) WHERE ref_id IS NOT NULL;

CREATE INDEX semel_operation_record ON semel_operation (record_id);

-- === reconciliations: how often reconcilers asked about an UNKNOWN record, and which one asks now ===
CREATE TABLE semel_reconciliation (
    record_id   BLOB    NOT NULL PRIMARY KEY,
    fence       INTEGER NOT NULL,                -- of the record that was asked about: another one begins anew
    asked       INTEGER NOT NULL,
    next_at     INTEGER NOT NULL,
    token       BLOB    NOT NULL,                -- of the worker that asks
    lease_until INTEGER NOT NULL,
    gave_up_at  INTEGER,                         -- an operator must find out
    reason      TEXT    NOT NULL,
    updated_at  INTEGER NOT NULL
) WITHOUT ROWID;

-- === events: the outbox, written in the transaction of the change that they report ===
-- The columns id to payload are those that Debezium's outbox event router reads by default.
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

CREATE INDEX semel_event_due ON semel_event (seq) WHERE published_at IS NULL;

CREATE INDEX semel_event_stuck ON semel_event (aggregateid, aggregatetype, seq) WHERE published_at IS NULL AND tries > 0;

CREATE INDEX semel_event_published ON semel_event (published_at) WHERE published_at IS NOT NULL;

CREATE TABLE semel_lane (
    lane        INTEGER PRIMARY KEY,
    holder      TEXT    NOT NULL,
    fence       INTEGER NOT NULL,
    lease_until INTEGER NOT NULL
);

INSERT INTO semel_lane (lane, holder, fence, lease_until) VALUES
    (0, '', 0, 0), (1, '', 0, 0), (2, '', 0, 0), (3, '', 0, 0), (4, '', 0, 0), (5, '', 0, 0),
    (6, '', 0, 0), (7, '', 0, 0), (8, '', 0, 0), (9, '', 0, 0), (10, '', 0, 0), (11, '', 0, 0),
    (12, '', 0, 0), (13, '', 0, 0), (14, '', 0, 0), (15, '', 0, 0), (16, '', 0, 0), (17, '', 0, 0),
    (18, '', 0, 0), (19, '', 0, 0), (20, '', 0, 0), (21, '', 0, 0), (22, '', 0, 0), (23, '', 0, 0),
    (24, '', 0, 0), (25, '', 0, 0), (26, '', 0, 0), (27, '', 0, 0), (28, '', 0, 0), (29, '', 0, 0),
    (30, '', 0, 0), (31, '', 0, 0);

CREATE TABLE semel_relay (
    holder      TEXT    NOT NULL PRIMARY KEY,
    lease_until INTEGER NOT NULL,
    bell_until  INTEGER NOT NULL                 -- it listens until then; a bell that only PostgreSQL has
) WITHOUT ROWID;

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
    operation_id BLOB     NOT NULL,
    place        INTEGER  NOT NULL,  -- from 0, in the order of the request
    item_id      TEXT     NOT NULL,  -- the client's name for it, or one derived from its content
    state        INTEGER  NOT NULL,
    target_id    TEXT,
    result_id    TEXT,
    error_code   TEXT,
    retryable    INTEGER  NOT NULL,
    detail       BLOB,
    settled_at   INTEGER  NOT NULL,
    PRIMARY KEY (operation_id, place)
) WITHOUT ROWID;

CREATE UNIQUE INDEX semel_item_id ON semel_item (operation_id, item_id);

-- How far each bulk is, counted in the transactions of its items.
CREATE TABLE semel_bulk (
    operation_id BLOB     NOT NULL,
    total        INTEGER  NOT NULL,
    done         INTEGER  NOT NULL,  -- the first so many items have an outcome, or have begun
    succeeded    INTEGER  NOT NULL,
    failed       INTEGER  NOT NULL,
    retryable    INTEGER  NOT NULL,
    unknown      INTEGER  NOT NULL,
    created_at   INTEGER  NOT NULL,
    touched_at   INTEGER  NOT NULL,
    PRIMARY KEY (operation_id)
) WITHOUT ROWID;
