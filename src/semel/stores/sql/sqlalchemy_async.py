"""SQLAlchemy on an event loop: sessions on an ATOMIC unit's connection, and joining an ``AsyncSession`` or
``AsyncConnection`` on SQLite through its ``run_sync``.

A file of its own because SQLAlchemy's asyncio module needs greenlet, which synchronous users need not have.
"""

from __future__ import annotations

import sqlite3
import sys
from typing import Any, Final, TypeVar

from sqlalchemy.engine import Dialect
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from semel.articles import name_type
from semel.core.flow import MakeFlow
from semel.errors import ConfigurationError
from semel.stores.sql.sqlalchemy import bound_engine, join_sqlalchemy, mark_of, postgres_server
from semel.stores.sqlite.join import JoinedUnit, StoreFile

__all__ = ["AsyncConnection", "AsyncSession", "async_session_on", "join_sqlalchemy_async"]

T = TypeVar("T")

_SQLITE: Final = (
    "on SQLite the connection of an ATOMIC unit is sqlite3's, also on an event loop: its writes take the file's lock "
    "that the unit holds, and wait for nothing; open a session on it with session_on of semel.stores.sql.sqlalchemy"
)
_NO_CONNECTION: Final = (
    "{kind} is not a connection that an AsyncEngine gives its handlers; pass permit.connection, and in a handler "
    "that runs in a thread use session_on of semel.stores.sql.sqlalchemy"
)


def async_session_on(connection: Any, **options: Any) -> AsyncSession:
    """Open an AsyncSession on an ATOMIC unit's connection: psycopg's, asyncpg's or asyncmy's.

    ``commit()`` and ``rollback()`` as :func:`semel.stores.sql.sqlalchemy.session_on` has them.

    Parameters: ``connection`` is ``permit.connection``; ``options`` are those of SQLAlchemy's ``AsyncSession``, with
    ``expire_on_commit=False`` where they say nothing else, so that objects may be read when the session is closed.

    Raises ConfigurationError for any other connection; SQLite's too, which is for ``session_on``.

    >>> import sqlite3
    >>> async_session_on(sqlite3.connect(":memory:"))
    Traceback (most recent call last):
        ...
    semel.errors.ConfigurationError: on SQLite the connection of an ATOMIC unit is sqlite3's, also on an event loop: ...
    """
    dialect, server = _dialect_of(connection)

    async def lend() -> Any:
        if hasattr(connection, "commit"):  # as in ``session_on``; with asyncpg a session has a savepoint of its own
            await connection.commit()
        mark = mark_of(connection)
        if mark is not None:
            mark()
        return connection

    def borrow(made: Dialect) -> Any:
        assert made.dbapi is not None
        return made.dbapi.connect(async_creator_fn=lend)

    return AsyncSession(AsyncEngine(bound_engine(dialect, server, borrow)), **{"expire_on_commit": False, **options})


def _dialect_of(connection: Any) -> tuple[str, tuple[Any, ...]]:
    if isinstance(connection, sqlite3.Connection):
        raise ConfigurationError(_SQLITE)
    psycopg, asyncpg, asyncmy = (sys.modules.get(name) for name in ("psycopg", "asyncpg", "asyncmy"))
    if psycopg is not None and isinstance(connection, psycopg.AsyncConnection):
        return "postgresql+psycopg_async", postgres_server(connection)
    if asyncpg is not None and isinstance(connection, (asyncpg.Connection, asyncpg.pool.PoolConnectionProxy)):
        params = connection._params  # asyncpg publishes neither its address nor its database
        return "postgresql+asyncpg", (connection._addr, params.database, connection.get_server_version())
    if asyncmy is not None and isinstance(connection, asyncmy.Connection):
        address = connection._host, connection._port, connection._db
        return "mariadb+asyncmy", (*address, connection.get_server_info())
    raise ConfigurationError(_NO_CONNECTION.format(kind=name_type(connection, with_module=True)))


class AsyncJoinedUnit(JoinedUnit):
    """A :class:`JoinedUnit` on an AsyncSession or AsyncConnection, through its ``run_sync``."""

    def __init__(self, target: AsyncSession | AsyncConnection, unit: JoinedUnit) -> None:
        super().__init__(target, unit.execute, unit.clock)  # only the synchronous one knows of savepoints
        self._unit = unit

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Run a store flow inside the transaction."""
        result: T = await self.connection.run_sync(lambda _: self._unit.run(make))
        return result

    async def rollback_async(self) -> None:
        """End the empty transaction that Semel began."""
        await self.connection.run_sync(lambda _: self._unit.rollback())


async def join_sqlalchemy_async(target: AsyncSession | AsyncConnection, file: StoreFile) -> AsyncJoinedUnit:
    """As :func:`join_sqlalchemy`, for asynchronous sessions and connections."""
    unit = await target.run_sync(lambda sync: join_sqlalchemy(sync, file))
    return AsyncJoinedUnit(target, unit)
