-- Quotas: how many new keys each caller has brought. Only a process that declares a quota reads or writes it.
CREATE TABLE IF NOT EXISTS semel_quota (
    id          bytea    PRIMARY KEY,      -- digest of tenant, caller, and the operation where its quota is its own
    slice       bigint   NOT NULL,         -- the number of the newest slice of time
    slice_us    bigint   NOT NULL,
    counts      bigint[] NOT NULL,         -- new keys by slice, the newest last
    ids         bytea[]  NOT NULL,         -- records that were open when seen last
    since       bigint[] NOT NULL,         -- when they were claimed
    asked_at    bigint   NOT NULL,         -- from here on: the last statement's question and its answer
    wanted      bigint   NOT NULL,
    new_keys    bigint,
    open_max    bigint,
    unknown_max bigint,
    granted     bigint   NOT NULL,
    opens       integer  NOT NULL,
    unknowns    integer  NOT NULL
) WITH (fillfactor = 50);
