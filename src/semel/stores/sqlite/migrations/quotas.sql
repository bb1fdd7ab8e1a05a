-- Quotas: how many new keys each caller has brought. Only a process that declares a quota reads or writes it.
CREATE TABLE IF NOT EXISTS semel_quota (
    id       BLOB    NOT NULL PRIMARY KEY,  -- digest of tenant, caller, and the operation where its quota is its own
    slice    INTEGER NOT NULL,  -- the number of the newest slice of time
    slice_us INTEGER NOT NULL,
    counts   TEXT    NOT NULL,  -- new keys by slice, the newest last
    listed   BLOB    NOT NULL   -- records that were open when seen last: 16 bytes of id and 8 of time each
) WITHOUT ROWID;
