"""Writes in the user's transaction on SQLite, begun or not, for writes that need no claim.

Semel begins no transaction here: if none is open, the user's own library begins it with this write, as with any other.
"""

from __future__ import annotations

import sqlite3
import sys
from typing import Any, Final

from semel.errors import JoinRefused
from semel.stores.clock import Clock
from semel.stores.sqlite.join import ELSEWHERE, Execute, JoinedUnit, StoreFile, executing, is_of_file
from semel.stores.sqlite.join_target import unknown

ALONE: Final = (
    "no transaction is open on this connection and it is in autocommit mode, so the event would be committed without "
    "what it tells; begin a transaction first"
)


def writing(connection: Any, path: str, clock: Clock) -> JoinedUnit:
    """Join the transaction of a sqlite3 connection, a SQLAlchemy Session or Connection, or Django's.

    Raises JoinRefused: another file, or nothing would be committed together.
    """
    file = StoreFile(path, clock, 0.0)
    if isinstance(connection, sqlite3.Connection):
        begins = connection.isolation_level is not None and getattr(connection, "autocommit", None) is not True
        if not connection.in_transaction and not begins:
            raise JoinRefused(ALONE)
        return _join_checked(connection, executing(connection), file)
    if "sqlalchemy" in sys.modules:
        from semel.stores.sql import sqlalchemy as alchemy

        if isinstance(connection, (alchemy.Session, alchemy.Connection)):
            return _join_checked(connection, alchemy.executing_on(connection), file)
    if "django.db" in sys.modules:
        from semel.stores.sql import django

        if django.is_django(connection):
            if not connection.in_atomic_block:
                raise JoinRefused(ALONE)
            return _join_checked(connection, executing(connection.connection), file)
    raise JoinRefused(unknown(connection))


async def writing_async(connection: Any, path: str, clock: Clock) -> JoinedUnit:
    """As :func:`writing`, also for an AsyncSession or AsyncConnection."""
    if "sqlalchemy.ext.asyncio" in sys.modules:
        from semel.stores.sql import sqlalchemy_async as alchemy

        if isinstance(connection, (alchemy.AsyncSession, alchemy.AsyncConnection)):
            unit = await connection.run_sync(lambda sync: writing(sync, path, clock))
            return alchemy.AsyncJoinedUnit(connection, unit)
    return writing(connection, path, clock)


def _join_checked(connection: Any, execute: Execute, file: StoreFile) -> JoinedUnit:
    if not is_of_file(execute, file):
        raise JoinRefused(ELSEWHERE)
    return JoinedUnit(connection, execute, file.clock)
