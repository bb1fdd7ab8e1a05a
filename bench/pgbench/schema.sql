-- A record as small as a record can be.
DROP TABLE IF EXISTS bench_plain;
CREATE TABLE bench_plain (
    k bytea NOT NULL PRIMARY KEY,
    fp bytea NOT NULL,
    token bigint NOT NULL,
    lease timestamptz NOT NULL,
    expires timestamptz NOT NULL,
    state smallint NOT NULL,
    status smallint,
    headers bytea,
    body bytea
);
