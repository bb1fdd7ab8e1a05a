-- Turns: which worker of a kind looks next. Every process can do without: then each looks for itself.
CREATE TABLE IF NOT EXISTS semel_turn (
    kind   VARCHAR(100) NOT NULL PRIMARY KEY,
    last   BIGINT       NOT NULL,  -- the last turn that any of them has taken
    looked BIGINT       NOT NULL   -- and when
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin;
