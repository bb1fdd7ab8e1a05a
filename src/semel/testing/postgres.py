"""The PostgreSQL store as a subject of the conformance suite: a schema of its own on a server that runs."""

from __future__ import annotations

import psycopg
from psycopg import sql

from semel.engine.backend import Backend
from semel.engine.connect_postgres import postgres_backend
from semel.model import Record
from semel.testing.bench import Subject
from semel.testing.clock import SettableClock


def postgres_subject(conninfo: str, schema: str, clock: SettableClock, *, asyncpg: bool = False) -> Subject:
    """A new, empty schema on the server that ``conninfo`` names; whatever it held is dropped.

    Parameters: ``schema`` a lower-case identifier; ``asyncpg`` whether that library performs on event loops.
    """
    name = sql.Identifier(schema)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(name))
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))

    def opened() -> Backend:
        return postgres_backend(conninfo, schema=schema, clock=clock, asyncpg=asyncpg)

    def corrupt(row: Record) -> None:
        with psycopg.connect(conninfo, autocommit=True, options=f"-c search_path={schema}") as connection:
            connection.execute(
                "UPDATE semel_record SET state = %s, body = %s WHERE id = %s", (row.state, row.body, row.id)
            )

    return Subject(opened(), corrupt, opened)
