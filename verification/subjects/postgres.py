"""The PostgreSQL store as a subject of the conformance suite: a separate schema on a running server."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from semel.core.model import Record
from semel.stores.backend import Backend
from semel.stores.postgres.url import postgres_backend
from semel.testing.bench import Subject
from semel.testing.clock import SettableClock


def empty_schema(conninfo: str, schema: str) -> None:
    """A new, empty schema on the server that ``conninfo`` names; whatever it held is dropped."""
    name = sql.Identifier(schema)
    options = "-c client_min_messages=warning -c lock_timeout=10s"
    with psycopg.connect(conninfo, autocommit=True, options=options) as connection:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(name))
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))


def postgres_subject(
    conninfo: str, schema: str, clock: SettableClock, *, asyncpg: bool = False, through: str | None = None
) -> Subject:
    """The store in a new, empty schema on the server that ``conninfo`` names.

    Parameters: ``schema`` a lower-case identifier; ``asyncpg`` whether that library performs on event loops;
    ``through`` the connection string of a pooler in transaction mode before that server, whose connections have
    ``schema`` on their search_path.
    """
    empty_schema(conninfo, schema)

    def open_backend() -> Backend:
        options: dict[str, Any] = {"schema": schema} if through is None else {"prepared": False}
        return postgres_backend(through or conninfo, clock=clock, asyncpg=asyncpg, **options)

    def corrupt(row: Record) -> None:
        with psycopg.connect(conninfo, autocommit=True, options=f"-c search_path={schema}") as connection:
            connection.execute(
                "UPDATE semel_record SET state = %s, body = %s WHERE id = %s", (row.state, row.body, row.id)
            )

    return Subject(open_backend(), corrupt, open_backend)
