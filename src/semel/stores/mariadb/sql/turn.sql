-- How a worker takes its next turn (core/contract.py, next_turn): the beginning of each statement `turn`.
INSERT INTO semel_turn (kind, last, looked) VALUES (:kind, :now + :every, :now)
ON DUPLICATE KEY UPDATE
    last = CASE
        WHEN COALESCE(:mine > :now AND :mine < :now + 100 * :every, 0) THEN last
        WHEN last < :now OR looked > :now OR 2 * (:now - looked) > 3 * :every THEN :now + :every
        ELSE LEAST(last, :now + 60 * :every) + :every
    END,
    looked = IF(COALESCE(:mine > :now AND :mine < :now + 100 * :every, 0), looked, :now)
RETURNING
    :now,
    IF(COALESCE(:mine > :now AND :mine < :now + 100 * :every, 0), :mine, last),
