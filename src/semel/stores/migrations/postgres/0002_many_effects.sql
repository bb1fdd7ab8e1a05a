-- Commands with many effects: steps, operations, events, handled messages, items. Each part is one noun's.
-- Nothing here is written by a command that declares none of them.

-- === steps: recovery points of one execution, written by its holder alone, under its fence ===
-- A packed list (rules/steps.py), whole with each write; of another generation it means nothing.
ALTER TABLE semel_record ADD COLUMN steps bytea;

-- === operations: what was executed, under a name of the business, for longer than any key ===
CREATE TABLE semel_operation (
    operation_id  bytea    PRIMARY KEY,        -- UUIDv7
    record_id     bytea    NOT NULL,           -- of the key that it was asked for with
    tenant        text     NOT NULL,
    caller        text     NOT NULL,
    operation     text     NOT NULL,
    business_ref  text,                        -- one open or successful execution for each, within tenant and operation
    state         smallint NOT NULL,
    resource_type text,
    resource_id   text,
    error_code    text,
    created_at    bigint   NOT NULL,
    settled_at    bigint,
    forget_after  bigint
);

CREATE UNIQUE INDEX semel_operation_ref ON semel_operation (tenant, operation, business_ref)
WHERE business_ref IS NOT NULL;

CREATE INDEX semel_operation_record ON semel_operation (record_id);

-- === events: the outbox, written in the transaction of what they tell ===
-- The first six columns after seq are those that Debezium's outbox event router reads by default.
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

CREATE INDEX semel_event_due ON semel_event (lane, seq) WHERE published_at IS NULL;

CREATE INDEX semel_event_published ON semel_event (published_at) WHERE published_at IS NOT NULL;

CREATE TABLE semel_lane (
    lane        smallint PRIMARY KEY,
    holder      text     NOT NULL,
    fence       bigint   NOT NULL,
    lease_until bigint   NOT NULL
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
    record_id   bytea    NOT NULL,
    generation  integer  NOT NULL,
    place       bigint   NOT NULL,             -- from 0, in the order of the request
    item_id     text     NOT NULL,             -- the client's name for it, or one derived from its content
    state       smallint NOT NULL,
    target_id   text,
    result_id   text,
    error_code  text,
    retryable   smallint NOT NULL,
    detail      bytea,
    settled_at  bigint   NOT NULL,
    PRIMARY KEY (record_id, generation, place)
);

CREATE UNIQUE INDEX semel_item_id ON semel_item (record_id, generation, item_id);
