-- The first schema on MariaDB: the columns of model.Record, in its order.
-- The record's id is the primary key: under READ COMMITTED a duplicate there locks only one record. In a second unique
-- index the server locks gaps, and two claims of one key deadlock.
-- No index holds a column that a settle changes. Names compare byte by byte, trailing spaces too (nopad_bin).
-- Every statement may be repeated: MariaDB commits each of them by itself, so that a migration can stop between two.

CREATE TABLE IF NOT EXISTS semel_record (
    id               BINARY(16) NOT NULL PRIMARY KEY,  -- digest of scope and key
    format           SMALLINT   NOT NULL,
    tenant           TEXT       NOT NULL,
    caller           TEXT       NOT NULL,
    operation        TEXT       NOT NULL,
    key_hash         VARBINARY(64)  NOT NULL,
    recipe           TEXT       NOT NULL,
    fingerprint      VARBINARY(64)  NOT NULL,
    state            SMALLINT   NOT NULL,
    effects          SMALLINT   NOT NULL,
    fence            BIGINT     NOT NULL,
    nonce            VARBINARY(64)  NOT NULL,
    holder           TEXT       NOT NULL,
    attempt          INT        NOT NULL,
    lapses           INT        NOT NULL,
    generation       INT        NOT NULL,
    operation_id     VARBINARY(64)  NOT NULL,
    created_at       BIGINT     NOT NULL,              -- all times: microseconds since 1970, store clock
    first_started_at BIGINT     NOT NULL,
    lease_until      BIGINT     NOT NULL,              -- 0: given back by its holder
    deadline_at      BIGINT     NOT NULL,
    dedup_until      BIGINT     NOT NULL,
    lease_us         BIGINT     NOT NULL,              -- the policy as it was at the claim
    attempts_max     INT        NOT NULL,
    answer_us        BIGINT     NOT NULL,
    tombstone_us     BIGINT     NOT NULL,
    after_expiry     SMALLINT   NOT NULL,
    settled_at       BIGINT,
    answer_until     BIGINT,
    forget_after     BIGINT,
    doubt            TEXT,
    business_ref     TEXT,
    resource_type    TEXT,
    resource_id      TEXT,
    error_code       TEXT,
    answer_kind      SMALLINT   NOT NULL,
    answer_digest    VARBINARY(64),
    sealing_key_id   TEXT,
    status           INT,
    headers          LONGBLOB,
    request          LONGBLOB,
    body             LONGBLOB,
    seq              BIGINT     NOT NULL AUTO_INCREMENT,  -- about the order of creation: pages and walks
    KEY semel_record_seq (seq),                           -- both only grow at their end
    KEY semel_record_operation (operation_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- Records that need attention: UNKNOWN ones, and open ones that are older than the reaper's horizon. A few rows
-- beside a table of any size. A row here is a hint, never the truth: that is the record's own state.
CREATE TABLE IF NOT EXISTS semel_attention (
    id BINARY(16) NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS semel_audit (
    seq       BIGINT     NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at        BIGINT     NOT NULL,
    record_id BINARY(16) NOT NULL,
    actor     TEXT       NOT NULL,
    action    TEXT       NOT NULL,
    reason    TEXT       NOT NULL,
    fence     BIGINT     NOT NULL,
    KEY semel_audit_record (record_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;

-- horizon: no open record has a smaller seq, but for those in semel_attention.
CREATE TABLE IF NOT EXISTS semel_meta (
    one            SMALLINT  NOT NULL PRIMARY KEY,
    store_id       TEXT      NOT NULL,
    schema_version INT       NOT NULL,
    epoch          INT       NOT NULL,
    id_format      INT       NOT NULL,
    secret_check   BLOB      NOT NULL,
    horizon        BIGINT    NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
