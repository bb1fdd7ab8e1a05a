-- Commands with many effects: steps, operations, events, handled messages, items. Each part is one noun's.
-- Nothing here is written by a command that declares none of them.

-- === steps: recovery points of one execution, written by its holder alone, under its fence ===
-- A packed list (steps/rules.py), whole with each write; of another generation it means nothing.
ALTER TABLE semel_record ADD COLUMN steps bytea;

-- === operations: executions under business names, remembered for longer than any key ===
CREATE TABLE semel_operation (
    operation_id  bytea    PRIMARY KEY,        -- UUIDv7
    record_id     bytea    NOT NULL,           -- of the key that it was asked for with
    tenant        text     NOT NULL,
    caller        text     NOT NULL,
    operation     text     NOT NULL,
    business_ref  text,
    ref_id        bytea,                       -- digest of tenant, operation and business reference
    holds         bytea,                       -- the same while it is open, unknown or successful: one for each
    state         smallint NOT NULL,
    resource_type text,
    resource_id   text,
    error_code    text,
    keep_us       bigint   NOT NULL,           -- how long it is remembered once it is settled
    created_at    bigint   NOT NULL,
    settled_at    bigint,
    forget_after  bigint
) WITH (fillfactor = 85);

CREATE UNIQUE INDEX semel_operation_holds ON semel_operation (holds) WHERE holds IS NOT NULL;

CREATE INDEX semel_operation_ref ON semel_operation (ref_id, operation_id) WHERE ref_id IS NOT NULL;

CREATE INDEX semel_operation_record ON semel_operation (record_id);

-- === reconciliations: how often reconcilers asked about an UNKNOWN record, and which one asks now ===
CREATE TABLE semel_reconciliation (
    record_id   bytea   PRIMARY KEY,
    fence       bigint  NOT NULL,              -- of the record that was asked about: another one begins anew
    asked       integer NOT NULL,
    next_at     bigint  NOT NULL,
    token       bytea   NOT NULL,              -- of the worker that asks
    lease_until bigint  NOT NULL,
    gave_up_at  bigint,                        -- an operator must find out
    reason      text    NOT NULL,
    updated_at  bigint  NOT NULL
);

-- === events: the outbox, written in the transaction of the change that they report ===
-- The columns id to payload are those that Debezium's outbox event router reads by default.
CREATE TABLE semel_event (
    seq           bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id            uuid     NOT NULL UNIQUE,    -- derived: the same for every run of the same execution
    aggregatetype text     NOT NULL,
    aggregateid   text     NOT NULL,           -- the order of its events is kept
    type          text     NOT NULL,
    payload       bytea    NOT NULL,
    topic         text     NOT NULL,
    headers       bytea    NOT NULL,
    tenant        text     NOT NULL,
    lane          smallint NOT NULL,           -- a digest of the aggregate: one relay at a time delivers a lane
    operation_id  bytea,
    created_at    bigint   NOT NULL,
    tries         integer  NOT NULL DEFAULT 0,
    next_at       bigint   NOT NULL DEFAULT 0,
    parked_at     bigint,
    reason        text,
    published_at  bigint
);

CREATE INDEX semel_event_due ON semel_event (seq) WHERE published_at IS NULL;

CREATE INDEX semel_event_stuck ON semel_event (aggregateid, aggregatetype, seq) WHERE published_at IS NULL AND tries > 0;

CREATE INDEX semel_event_published ON semel_event (published_at) WHERE published_at IS NOT NULL;

CREATE TABLE semel_lane (
    lane        smallint PRIMARY KEY,
    holder      text     NOT NULL,
    fence       bigint   NOT NULL,
    lease_until bigint   NOT NULL
);

INSERT INTO semel_lane (lane, holder, fence, lease_until) VALUES
    (0, '', 0, 0), (1, '', 0, 0), (2, '', 0, 0), (3, '', 0, 0), (4, '', 0, 0), (5, '', 0, 0),
    (6, '', 0, 0), (7, '', 0, 0), (8, '', 0, 0), (9, '', 0, 0), (10, '', 0, 0), (11, '', 0, 0),
    (12, '', 0, 0), (13, '', 0, 0), (14, '', 0, 0), (15, '', 0, 0), (16, '', 0, 0), (17, '', 0, 0),
    (18, '', 0, 0), (19, '', 0, 0), (20, '', 0, 0), (21, '', 0, 0), (22, '', 0, 0), (23, '', 0, 0),
    (24, '', 0, 0), (25, '', 0, 0), (26, '', 0, 0), (27, '', 0, 0), (28, '', 0, 0), (29, '', 0, 0),
    (30, '', 0, 0), (31, '', 0, 0);

CREATE TABLE semel_relay (
    holder      text   PRIMARY KEY,
    lease_until bigint NOT NULL,
    bell_until  bigint NOT NULL                -- it listens until then: writers of events ring
);

-- === inbox: which messages a consumer has handled, written in the transaction of their effect ===
CREATE TABLE semel_inbox (
    consumer     text    NOT NULL,
    message_id   text    NOT NULL,
    handled_at   bigint,                       -- none yet: it was tried and failed
    tries        integer NOT NULL,
    parked_at    bigint,
    reason       text,
    forget_after bigint  NOT NULL,
    PRIMARY KEY (consumer, message_id)
);

CREATE INDEX semel_inbox_forget ON semel_inbox (forget_after);

-- === items: the lines of bulk commands, each with an outcome of its own ===
CREATE TABLE semel_item (
    operation_id bytea    NOT NULL,
    place        bigint   NOT NULL,  -- from 0, in the order of the request
    item_id      text     NOT NULL,  -- the client's name for it, or one derived from its content
    state        smallint NOT NULL,
    target_id    text,
    result_id    text,
    error_code   text,
    retryable    smallint NOT NULL,
    detail       bytea,
    settled_at   bigint   NOT NULL,
    PRIMARY KEY (operation_id, place)
);

CREATE UNIQUE INDEX semel_item_id ON semel_item (operation_id, item_id);

-- How far each bulk is, counted in the transactions of its items.
CREATE TABLE semel_bulk (
    operation_id bytea    NOT NULL,
    total        bigint   NOT NULL,
    done         bigint   NOT NULL,  -- the first so many items have an outcome, or have begun
    succeeded    bigint   NOT NULL,
    failed       bigint   NOT NULL,
    retryable    bigint   NOT NULL,
    unknown      bigint   NOT NULL,
    created_at   bigint   NOT NULL,
    touched_at   bigint   NOT NULL,
    PRIMARY KEY (operation_id)
);
