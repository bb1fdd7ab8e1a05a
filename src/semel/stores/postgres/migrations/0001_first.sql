-- The first schema on PostgreSQL: the columns of model.Record, in its order.
-- No index holds a column that a settle changes, so that settlements stay HOT updates; fillfactor 85 leaves them room.
-- A body is bytes, never jsonb: what is replayed is what was stored.

CREATE TABLE semel_record (
    id               bytea    PRIMARY KEY,     -- 16 bytes: digest of scope and key
    format           smallint NOT NULL,
    tenant           text     NOT NULL,
    caller           text     NOT NULL,
    operation        text     NOT NULL,
    key_hash         bytea    NOT NULL,
    recipe           text     NOT NULL,
    fingerprint      bytea    NOT NULL,
    state            smallint NOT NULL,
    effects          smallint NOT NULL,
    fence            bigint   NOT NULL,
    nonce            bytea    NOT NULL,
    holder           text     NOT NULL,
    attempt          integer  NOT NULL,
    lapses           integer  NOT NULL,
    generation       integer  NOT NULL,
    operation_id     bytea    NOT NULL,
    created_at       bigint   NOT NULL,        -- all times: microseconds since 1970, store clock
    first_started_at bigint   NOT NULL,
    lease_until      bigint   NOT NULL,        -- 0: given back by its holder
    deadline_at      bigint   NOT NULL,
    dedup_until      bigint   NOT NULL,
    lease_us         bigint   NOT NULL,        -- the policy as it was at the claim
    attempts_max     integer  NOT NULL,
    answer_us        bigint   NOT NULL,
    tombstone_us     bigint   NOT NULL,
    after_expiry     smallint NOT NULL,
    settled_at       bigint,
    answer_until     bigint,
    forget_after     bigint,
    doubt            text,
    business_ref     text,
    resource_type    text,
    resource_id      text,
    error_code       text,
    answer_kind      smallint NOT NULL,
    answer_digest    bytea,
    sealing_key_id   text,
    status           integer,
    headers          bytea,
    request          bytea,
    body             bytea,
    seq              bigint   GENERATED ALWAYS AS IDENTITY  -- about the order of creation: pages and walks
) WITH (fillfactor = 85);

-- Both only grow at their end.
CREATE UNIQUE INDEX semel_record_seq ON semel_record (seq);

CREATE INDEX semel_record_operation ON semel_record (operation_id);

-- Records that need attention: UNKNOWN ones, and open ones that are older than the reaper's horizon. A few rows
-- beside a table of any size. A row here is a hint, never the truth: that is the record's own state.
CREATE TABLE semel_attention (
    id bytea PRIMARY KEY
);

CREATE TABLE semel_audit (
    seq       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        bigint NOT NULL,
    record_id bytea  NOT NULL,
    actor     text   NOT NULL,
    action    text   NOT NULL,
    reason    text   NOT NULL,
    fence     bigint NOT NULL
);

CREATE INDEX semel_audit_record ON semel_audit (record_id);

-- horizon: no open record has a smaller seq, but for those in semel_attention.
CREATE TABLE semel_meta (
    one            smallint PRIMARY KEY CHECK (one = 1),
    store_id       text     NOT NULL,
    schema_version integer  NOT NULL,
    epoch          integer  NOT NULL,
    id_format      integer  NOT NULL,
    secret_check   bytea    NOT NULL,
    horizon        bigint   NOT NULL
);
