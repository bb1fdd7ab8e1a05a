"""Joining the transaction of a SQLAlchemy Session or Connection on PostgreSQL, through psycopg 3 or asyncpg.

With psycopg, Semel uses the driver's own connection, on which SQLAlchemy has begun the transaction. With asyncpg, Semel
goes through SQLAlchemy, which begins a transaction with its own first statement.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.orm import Session

from semel.errors import JoinRefused, StoreUnavailable
from semel.stores.postgres.errors import store_error
from semel.stores.postgres.join import AUTOCOMMIT, SAVEPOINT, LineFailed
from semel.stores.postgres.psycopg.join import AsyncPsycopgLine, PsycopgLine

_BLOCK: Final = "an engine or connection without isolation_level='AUTOCOMMIT'"
_OVER: Final = "this transaction was ended before its settlement; roll back, do not commit"
_DRIVERS: Final = {"psycopg", "psycopg_async", "asyncpg"}


def line_of(target: Session | Connection) -> PsycopgLine:
    """Return the line of a Session or Connection through psycopg. Raises JoinRefused."""
    connection = connection_of(target)
    if connection.dialect.driver != "psycopg":
        raise JoinRefused(
            f"the dialect {connection.dialect.name}+{connection.dialect.driver} cannot be joined here; use "
            "postgresql+psycopg, or with AsyncEngine an AsyncSession on postgresql+psycopg or postgresql+asyncpg"
        )
    driver: Any = connection.connection.driver_connection
    return PsycopgLine(
        driver,
        target=target,
        is_current=is_current(connection, driver),
        is_nested=connection.in_nested_transaction,
        block=_BLOCK,
    )


async def line_of_async(target: Any) -> AsyncPsycopgLine | AsyncpgAlchemyLine:
    """Return the line of an AsyncSession or AsyncConnection. Raises JoinRefused."""
    connection: Connection = await target.run_sync(connection_of)
    if connection.dialect.driver not in _DRIVERS:
        raise JoinRefused(f"the dialect {connection.dialect.name}+{connection.dialect.driver} cannot be joined")
    driver: Any = connection.connection.driver_connection
    if connection.dialect.driver == "asyncpg":
        return AsyncpgAlchemyLine(target, connection, driver)
    return AsyncPsycopgLine(
        driver,
        target=target,
        is_current=is_current(connection, driver),
        is_nested=connection.in_nested_transaction,
        block=_BLOCK,
    )


def connection_of(target: Session | Connection) -> Connection:
    """Return the connection that a Session's transaction is on. Raises JoinRefused."""
    if target.in_nested_transaction():
        raise JoinRefused(SAVEPOINT)
    connection = target.connection() if isinstance(target, Session) else target
    if connection.dialect.name != "postgresql":
        raise JoinRefused(f"this store is PostgreSQL, the transaction is on {connection.dialect.name}: two databases")
    if connection.in_nested_transaction():
        raise JoinRefused(SAVEPOINT)
    if not connection.in_transaction():
        connection.begin()  # SQLAlchemy would begin only at its first statement; this sends nothing
    return connection


def is_current(connection: Connection, driver: Any) -> Callable[[], bool]:
    """Whether the transaction that was joined is still SQLAlchemy's: after a commit others may have its connection."""
    transaction = connection.get_transaction()

    def current() -> bool:
        return not connection.closed and connection.get_transaction() is transaction and not connection.invalidated

    return current


class AsyncpgAlchemyLine:
    """The transaction of an AsyncSession or AsyncConnection through asyncpg."""

    def __init__(self, target: Any, connection: Connection, driver: Any) -> None:
        self.target = target
        self.session = driver
        self._connection = connection
        self._is_current = is_current(connection, driver)
        self.is_nested = connection.in_nested_transaction
        if getattr(connection.connection.dbapi_connection, "autocommit", False):
            raise JoinRefused(AUTOCOMMIT.format(block=_BLOCK))

    async def execute(self, text: str, values: list[Any]) -> list[Any]:
        """Return rows as tuples. Raises LineFailed."""

        def perform(_: Any) -> list[Any]:
            return [tuple(row) for row in self._connection.exec_driver_sql(text, tuple(values)).fetchall()]

        try:
            rows: list[Any] = await self.target.run_sync(perform)
            return rows
        except DBAPIError as error:
            sqlstate = getattr(error.orig, "sqlstate", None)
            raise LineFailed(sqlstate, store_error(sqlstate, str(error.orig).rpartition(">: ")[2])) from error
        except InvalidRequestError as error:
            raise LineFailed(None, StoreUnavailable(_OVER)) from error

    def is_open(self) -> bool:
        """Whether the transaction that was joined is open."""
        return self._is_current()

    async def end(self) -> None:
        """Do nothing: only SQLAlchemy knows how the transaction began, and its owner ends it."""

    def fail(self) -> None:
        """Do nothing: a failed transaction can only be rolled back."""


def is_alchemy(connection: Any) -> bool:
    """Whether the target is a synchronous Session or Connection of SQLAlchemy."""
    return isinstance(connection, (Session, Connection))


def is_async_alchemy(connection: Any) -> bool:
    """Whether the target is an AsyncSession or AsyncConnection of SQLAlchemy, which need greenlet."""
    asynchronous = sys.modules.get("sqlalchemy.ext.asyncio")
    return asynchronous is not None and isinstance(
        connection, (asynchronous.AsyncSession, asynchronous.AsyncConnection)
    )
