-- How a worker takes its next turn (core/contract.py, next_turn): the beginning of each statement `turn`.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) AS now
),
taken AS (
    INSERT INTO semel_turn AS t (kind, last, looked)
    SELECT :kind::text, now + :every::bigint, now FROM clock
    WHERE (:mine::bigint > now AND :mine::bigint < now + 100 * :every::bigint) IS NOT TRUE
    ON CONFLICT (kind) DO UPDATE SET
        last = CASE
            WHEN t.last < excluded.looked OR t.looked > excluded.looked
                OR 2 * (excluded.looked - t.looked) > 3 * :every::bigint
            THEN excluded.last
            ELSE least(t.last, excluded.looked + 60 * :every::bigint) + :every::bigint
        END,
        looked = excluded.looked
    RETURNING last
),
