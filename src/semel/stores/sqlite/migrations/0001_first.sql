-- The first schema. It carries what is painful to add later.
-- Bodies come last: a scan over states and times then never touches their overflow pages.
-- A rowid table on purpose: WITHOUT ROWID would move whole bodies with every claim (0.4-0.7 of the rate).

CREATE TABLE semel_record (
    seq              INTEGER PRIMARY KEY,      -- order of creation: one writer, so also order of commit
    id               BLOB    NOT NULL UNIQUE,  -- 16 bytes: digest of scope and key
    format           INTEGER NOT NULL,
    tenant           TEXT    NOT NULL,
    caller           TEXT    NOT NULL,
    operation        TEXT    NOT NULL,
    key_hash         BLOB    NOT NULL,
    recipe           TEXT    NOT NULL,
    fingerprint      BLOB    NOT NULL,
    state            INTEGER NOT NULL,
    effects          INTEGER NOT NULL,
    fence            INTEGER NOT NULL,
    nonce            BLOB    NOT NULL,
    holder           TEXT    NOT NULL,
    attempt          INTEGER NOT NULL,
    lapses           INTEGER NOT NULL,
    generation       INTEGER NOT NULL,
    operation_id     BLOB    NOT NULL,
    created_at       INTEGER NOT NULL,         -- all times: microseconds since 1970, store clock
    first_started_at INTEGER NOT NULL,
    lease_until      INTEGER NOT NULL,         -- 0: given back by its holder
    deadline_at      INTEGER NOT NULL,
    dedup_until      INTEGER NOT NULL,
    lease_us         INTEGER NOT NULL,         -- the policy as it was at the claim
    attempts_max     INTEGER NOT NULL,
    answer_us        INTEGER NOT NULL,
    tombstone_us     INTEGER NOT NULL,
    after_expiry     INTEGER NOT NULL,
    settled_at       INTEGER,
    answer_until     INTEGER,
    forget_after     INTEGER,
    doubt            TEXT,
    business_ref     TEXT,
    resource_type    TEXT,
    resource_id      TEXT,
    error_code       TEXT,
    answer_kind      INTEGER NOT NULL,
    answer_digest    BLOB,
    sealing_key_id   TEXT,
    status           INTEGER,
    headers          BLOB,
    request          BLOB,
    body             BLOB
);

-- The status resource looks operations up by their id; UUIDv7, so this index only grows at its end.
CREATE INDEX semel_record_operation ON semel_record (operation_id);

-- Open and unknown records only: a handful of rows however large the table is. SQLite has no HOT
-- updates to lose, so the reaper and the operator's list may have the index that PostgreSQL must not.
-- Not `state IN (1, 2, 6)`: for a list of three SQLite makes and drops a b-tree at each row that is written.
-- Files made before say so and stay as they are: what looks for open records names both conditions.
CREATE INDEX semel_record_open ON semel_record (state, lease_until) WHERE state = 1 OR state = 2 OR state = 6;

CREATE TABLE semel_audit (
    seq       INTEGER PRIMARY KEY,
    at        INTEGER NOT NULL,
    record_id BLOB    NOT NULL,
    actor     TEXT    NOT NULL,
    action    TEXT    NOT NULL,
    reason    TEXT    NOT NULL,
    fence     INTEGER NOT NULL
);

CREATE INDEX semel_audit_record ON semel_audit (record_id);

CREATE TABLE semel_meta (
    one            INTEGER PRIMARY KEY CHECK (one = 1),
    store_id       TEXT    NOT NULL,
    schema_version INTEGER NOT NULL,
    epoch          INTEGER NOT NULL,
    id_format      INTEGER NOT NULL,
    secret_check   BLOB    NOT NULL
);
