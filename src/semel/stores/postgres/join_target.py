"""Choose how a user's connection is joined on PostgreSQL, by its type. Loads no library that the user has not."""

from __future__ import annotations

import sys
from typing import Any

import psycopg

from semel.articles import name_type
from semel.errors import JoinRefused
from semel.stores.postgres.join import (
    AsyncJoinedPostgres,
    JoinedPostgres,
    Line,
    PostgresHome,
    join_line,
    join_line_async,
)


def join(connection: Any, home: PostgresHome) -> JoinedPostgres:
    """Join the transaction of a psycopg Connection, a SQLAlchemy Session or Connection, or Django's connection.

    Raises JoinRefused and StoreError.
    """
    from semel.stores.postgres.psycopg.join import PsycopgLine

    if isinstance(connection, psycopg.Connection):
        return join_line(PsycopgLine(connection), home)
    if "sqlalchemy" in sys.modules:
        from semel.stores.postgres import sqlalchemy as alchemy

        if alchemy.is_alchemy(connection):
            return join_line(alchemy.line_of(connection), home)
        if alchemy.is_async_alchemy(connection):
            raise JoinRefused(_asynchronous(connection))
    if "django.db" in sys.modules:
        from semel.stores.sql import django

        if django.is_django(connection):
            from semel.stores.postgres.django import join_django

            return join_django(connection, home)
    if isinstance(connection, psycopg.AsyncConnection) or _is_asyncpg(connection):
        raise JoinRefused(_asynchronous(connection))
    raise JoinRefused(_unknown(connection))


async def join_async(connection: Any, home: PostgresHome) -> AsyncJoinedPostgres:
    """As ``join``, of a psycopg AsyncConnection, an asyncpg connection, or SQLAlchemy's."""
    line: Line
    if isinstance(connection, psycopg.AsyncConnection):
        from semel.stores.postgres.psycopg.join import AsyncPsycopgLine

        line = AsyncPsycopgLine(connection)
    elif _is_asyncpg(connection):
        from semel.stores.postgres.asyncpg.join import AsyncpgLine

        line = AsyncpgLine(connection)
    elif "sqlalchemy.ext.asyncio" in sys.modules and _is_async_alchemy(connection):
        from semel.stores.postgres.sqlalchemy import line_of_async

        line = await line_of_async(connection)
    else:
        raise JoinRefused(_unknown(connection))
    return await join_line_async(line, home)


def _is_asyncpg(connection: Any) -> bool:
    if "asyncpg" not in sys.modules:
        return False
    from semel.stores.postgres.asyncpg.join import CONNECTIONS

    return isinstance(connection, CONNECTIONS)


def _is_async_alchemy(connection: Any) -> bool:
    from semel.stores.postgres.sqlalchemy import is_async_alchemy

    return is_async_alchemy(connection)


def _asynchronous(connection: Any) -> str:
    kind = name_type(connection, with_module=True)
    return f"{kind} is joined with AsyncEngine: async with engine.atomic(connection, command) as once"


def _unknown(connection: Any) -> str:
    return (
        f"{name_type(connection, with_module=True)} cannot be joined here; with Engine pass a psycopg.Connection, a "
        "SQLAlchemy Session or Connection, or django.db.connection; with AsyncEngine a psycopg.AsyncConnection, an "
        "asyncpg connection, or a SQLAlchemy AsyncSession or AsyncConnection"
    )
