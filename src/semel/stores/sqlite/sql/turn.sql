-- What a worker whose turn has come sees of the records: the beginning of each statement `turn`. Its next turn is in a
-- file beside the database (stores/sqlite/turns.py). By the small index of open records: when the first one will lapse,
-- since when the first one has waited for a completer, and whether one is UNKNOWN. There is no page to read.
SELECT
    :now,
    :mine,
    (
        SELECT json_array(
            min(
                CASE
                    WHEN state = 1 AND lease_until <= :now THEN NULL
                    WHEN effects = 2 AND lapses + (lease_until > 0) < attempts_max THEN max(lease_until, dedup_until)
                    ELSE lease_until
                END
            ),
            min(CASE WHEN state = 1 AND lease_until <= :now AND request IS NOT NULL THEN lease_until END),
            EXISTS (
                SELECT 1 FROM semel_record WHERE state = 6 AND (state = 1 OR state = 2 OR state = 6) AND :page > 0
            ),
            0
        )
        FROM semel_record
        WHERE state IN (1, 2, 6) AND (state = 1 OR state = 2 OR state = 6) AND state IN (1, 2) AND :page > 0
    )
