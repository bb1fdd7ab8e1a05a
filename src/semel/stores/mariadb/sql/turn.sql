-- How a worker takes its next turn (workers/rules.py, next_turn), and what it sees of the records: the beginning of
-- each statement `turn`. It reads one page of the records created since, so that an idle fleet sends one statement per
-- turn. The last columns: when the first open record will lapse, since when the first one has waited for a completer,
-- whether one is UNKNOWN, and how long the page is.
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
    (
        SELECT JSON_ARRAY(
            MIN(
                CASE
                    WHEN r.state NOT IN (1, 2) OR (r.state = 1 AND r.lease_until <= :now) THEN NULL
                    WHEN r.effects = 2 AND r.lapses + (r.lease_until > 0) < r.attempts_max
                    THEN GREATEST(r.lease_until, r.dedup_until)
                    ELSE r.lease_until
                END
            ),
            MIN(IF(r.state = 1 AND r.lease_until <= :now AND r.request IS NOT NULL, r.lease_until, NULL)),
            COALESCE(MAX(r.state = 6), 0),
            (SELECT COUNT(*) FROM (SELECT 1 FROM semel_record WHERE seq > :after ORDER BY seq LIMIT :page) AS page)
        )
        FROM (
            SELECT id FROM semel_attention WHERE :page > 0
            UNION SELECT id FROM semel_record WHERE id IN :ids
            UNION SELECT id FROM (
                SELECT id, state FROM semel_record WHERE seq > :after ORDER BY seq LIMIT :page
            ) AS page WHERE state IN (1, 2)
        ) AS seen STRAIGHT_JOIN semel_record AS r ON r.id = seen.id
    )
