-- Turns: which worker of a kind looks next. Every process can do without: then each looks for itself.
-- What it holds is of no use after a crash, so that writing it costs no log and no sync.
CREATE UNLOGGED TABLE semel_turn (
    kind   text   PRIMARY KEY,
    last   bigint NOT NULL,  -- the last turn that any of them has taken
    looked bigint NOT NULL   -- and when
);
