-- What `semel doctor` and start-up ask a PostgreSQL server about itself. Nothing here writes, and every user may ask.

-- name: read_settings
-- The settings on which durability depends, as this connection has them: a role or a database may override them.
SELECT name, setting FROM pg_settings
WHERE name IN (
    'default_transaction_read_only', 'fsync', 'full_page_writes', 'server_version_num', 'synchronous_commit',
    'synchronous_standby_names'
)
UNION ALL
SELECT 'in_recovery', CASE WHEN pg_is_in_recovery() THEN 'on' ELSE 'off' END
UNION ALL
SELECT 'replicas', count(*)::text FROM pg_stat_replication
ORDER BY name;

-- name: read_grants
-- Every right on Semel's tables that this user lacks, such as ('semel_record', 'UPDATE'); none for a missing table.
SELECT wanted.tab, wanted.right_name
FROM (
    VALUES
        ('semel_record', 'SELECT'), ('semel_record', 'INSERT'), ('semel_record', 'UPDATE'), ('semel_record', 'DELETE'),
        ('semel_attention', 'SELECT'), ('semel_attention', 'INSERT'), ('semel_attention', 'UPDATE'),
        ('semel_attention', 'DELETE'), ('semel_audit', 'SELECT'), ('semel_audit', 'INSERT'), ('semel_meta', 'SELECT'),
        ('semel_turn', 'SELECT'), ('semel_turn', 'INSERT'), ('semel_turn', 'UPDATE')
    UNION ALL
    SELECT many.tab, every.right_name
    FROM unnest(ARRAY[
        'semel_operation', 'semel_reconciliation', 'semel_event', 'semel_lane', 'semel_relay', 'semel_inbox',
        'semel_item', 'semel_bulk', 'semel_import', 'semel_import_name', 'semel_import_row', 'semel_import_blob',
        'semel_import_part', 'semel_quota'
    ]) AS many (tab)
    CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS every (right_name)
) AS wanted (tab, right_name)
WHERE NOT coalesce(
    has_table_privilege(to_regclass(wanted.tab)::oid, wanted.right_name)
    OR CASE WHEN wanted.right_name = 'DELETE' THEN false
        ELSE has_any_column_privilege(to_regclass(wanted.tab)::oid, wanted.right_name) END,
    true
)
ORDER BY wanted.tab, wanted.right_name;
