"""Migrated schemas on PostgreSQL for tests: made once in each process, and emptied for each test.

Making one costs some hundred statements and an fsync for each file; emptying it costs two trips. A schema is used again
only if its catalog is what it was when it was made: a test that changes a table, an owner or a right, or lets the
server gather statistics, gets a new schema made for the next one.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from semel import Engine
from semel.stores.postgres.url import postgres_backend
from verification.subjects.postgres import empty_schema

# Everything but rows that may differ between a used schema and a new one. The statistics of a
# table are in it as well: a planner that has some plans otherwise than one that has none.
_CATALOG: Final = """
    WITH ours AS (
        SELECT oid, relname, relkind, relpersistence, reltuples <= 0 AS without_statistics, relowner, relacl, reloptions
        FROM pg_class WHERE relnamespace = {0}::regnamespace
    )
    SELECT md5(string_agg(line, E'\\n' ORDER BY line)) FROM (
        SELECT concat_ws('|', relname, relkind, relpersistence, without_statistics, relowner, relacl, reloptions)
            AS line FROM ours
        UNION ALL SELECT concat_ws('|', relname, attname, attnum, atttypid, attnotnull, attidentity, attacl)
            FROM pg_attribute JOIN ours ON attrelid = ours.oid WHERE attnum > 0 AND relkind IN ('r', 'p', 'v')
        UNION ALL SELECT concat_ws('|', relname, indisvalid, indisunique, indkey, pg_get_expr(indpred, indrelid))
            FROM pg_index JOIN ours ON indexrelid = ours.oid
        UNION ALL SELECT concat_ws('|', relname, conname, contype) FROM pg_constraint JOIN ours ON conrelid = ours.oid
        UNION ALL SELECT concat_ws('|', relname, tgname, tgenabled) FROM pg_trigger JOIN ours ON tgrelid = ours.oid
        UNION ALL SELECT concat_ws('|', relname, rulename) FROM pg_rewrite JOIN ours ON ev_class = ours.oid
        UNION ALL SELECT concat_ws('|', proname, md5(prosrc), proacl)
            FROM pg_proc WHERE pronamespace = {0}::regnamespace
        UNION ALL SELECT concat_ws('|', nspowner, nspacl) FROM pg_namespace WHERE oid = {0}::regnamespace
    ) AS lines
"""


@dataclass(frozen=True, slots=True)
class _Made:
    """A schema as it was when it was new: its catalog, and the statements that bring its rows back."""

    statements: Sequence[str]
    catalog: str
    emptying: str


_MADE: Final[dict[tuple[str, str], _Made]] = {}


_OPEN: Final[dict[str, psycopg.Connection[Any]]] = {}


def migrated_schema(conninfo: str, name: str, *statements: str) -> None:
    """A schema with Semel's tables and no record in it.

    Parameters: ``conninfo`` of the server; ``name`` a lower-case identifier; ``statements`` make the application's own
    tables in it, once.
    """
    made = _MADE.get((conninfo, name))
    connection = _connect(conninfo)
    connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(name)))
    if made is not None and made.statements == statements and _catalog(connection, name) == made.catalog:
        connection.execute(made.emptying.encode())
        return
    empty_schema(conninfo, name)
    with closing(Engine(postgres_backend(conninfo, schema=name))) as engine:
        engine.migrate()
    for statement in statements:
        connection.execute(statement.encode())
    _MADE[conninfo, name] = _Made(statements, _catalog(connection, name), _emptying(connection, name))


def _connect(conninfo: str) -> psycopg.Connection[Any]:
    """This process's own connection, which knows the tables already. Nothing that it writes has to survive a crash."""
    connection = _OPEN.get(conninfo)
    if connection is None or connection.closed or connection.broken:
        settings = "-c client_min_messages=warning -c lock_timeout=10s -c synchronous_commit=off"
        connection = psycopg.connect(conninfo, autocommit=True, options=settings, prepare_threshold=None)
        _OPEN[conninfo] = connection
        atexit.register(connection.close)
    return connection


def _catalog(connection: psycopg.Connection[Any], name: str) -> str:
    """A digest of everything in the schema but the rows; empty if there is no such schema."""
    [found] = connection.execute("SELECT to_regnamespace(%s)", (name,)).fetchone() or (None,)
    if found is None:
        return ""
    [digest] = connection.execute(sql.SQL(_CATALOG).format(sql.Literal(name))).fetchone() or ("",)
    return str(digest)


def _emptying(connection: psycopg.Connection[Any], name: str) -> str:
    """One text of statements: no rows but those of a new schema, each sequence from its beginning."""
    made: list[sql.Composable] = []
    tables = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r' ORDER BY oid DESC",
        (name,),
    ).fetchall()  # what refers to a table is younger than the table
    for (each,) in tables:
        table = sql.Identifier(name, each)
        made.append(sql.SQL("DELETE FROM {}").format(table))
        [rows] = connection.execute(sql.SQL("SELECT json_agg(t)::text FROM {} AS t").format(table)).fetchone() or (
            None,
        )
        if rows is not None:
            text = "INSERT INTO {0} OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::{0}, {1})"
            made.append(sql.SQL(text).format(table, sql.Literal(rows)))
    sequences = connection.execute(
        "SELECT sequencename, start_value, last_value FROM pg_sequences WHERE schemaname = %s", (name,)
    ).fetchall()
    for sequence, start, last in sequences:
        there = sql.Literal(sql.Identifier(name, sequence).as_string(connection))
        begun = sql.SQL("{}, {}").format(sql.Literal(last or start), sql.Literal(last is not None))
        made.append(sql.SQL("SELECT setval({}, {})").format(there, begun))
    return sql.SQL("; ").join(made).as_string(connection)
