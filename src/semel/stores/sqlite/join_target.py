"""Choose how a user's connection is joined on SQLite, by its type. Loads no library that the user has not."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from dataclasses import replace
from typing import Any

from semel.articles import name_type
from semel.errors import JoinRefused, StoreUnavailable
from semel.stores.sqlite.join import (
    BUSY_PAUSE_SECONDS,
    ELSEWHERE,
    JoinedUnit,
    StoreFile,
    executing,
    is_of_file,
    join_sqlite,
)


def join(connection: Any, file: StoreFile) -> JoinedUnit:
    """Join the next transaction of a sqlite3 connection, a SQLAlchemy Session or Connection, or Django's.

    Raises JoinRefused and StoreUnavailable.
    """
    if isinstance(connection, sqlite3.Connection):
        return join_sqlite(connection, file)
    if "sqlalchemy" in sys.modules:
        from semel.stores.sql import sqlalchemy as alchemy

        if isinstance(connection, (alchemy.Session, alchemy.Connection)):
            return alchemy.join_sqlalchemy(connection, file)
    if "django.db" in sys.modules:
        from semel.stores.sql import django

        if django.is_django(connection):
            django.check_block(connection, "sqlite", "SQLite")
            return _join_block(connection, file)
    raise JoinRefused(unknown(connection))


class JoinedBlock(JoinedUnit):
    """Django's ``atomic()`` block with the record in it. Django commits or rolls back, also after a verdict.

    Django has begun it already, as DEFERRED unless its settings say ``"transaction_mode": "IMMEDIATE"``: a block that
    has read before it joins may be refused the file's write lock at once; then nothing was written.
    """

    def rollback(self) -> None:
        """Do nothing: Django rolls back."""


def _join_block(connection: Any, file: StoreFile) -> JoinedBlock:
    block = connection.atomic_blocks[-1]
    execute = executing(connection.connection)
    if not is_of_file(execute, file):
        raise JoinRefused(ELSEWHERE)

    def is_nested() -> bool:
        return block in connection.atomic_blocks and connection.atomic_blocks[-1] is not block

    return JoinedBlock(connection, execute, file.clock, is_nested)


async def join_async(connection: Any, file: StoreFile) -> JoinedUnit:
    """As ``join``, also for AsyncSession and AsyncConnection; a busy file is awaited without blocking the loop."""
    at_once = replace(file, busy_seconds=0)
    ends = time.monotonic() + file.busy_seconds
    while True:
        try:
            return await _join_at_once(connection, at_once)
        except StoreUnavailable:
            if time.monotonic() >= ends:
                raise
        await asyncio.sleep(BUSY_PAUSE_SECONDS)


async def _join_at_once(connection: Any, file: StoreFile) -> JoinedUnit:
    if "sqlalchemy.ext.asyncio" in sys.modules:
        from semel.stores.sql import sqlalchemy_async as alchemy

        if isinstance(connection, (alchemy.AsyncSession, alchemy.AsyncConnection)):
            return await alchemy.join_sqlalchemy_async(connection, file)
    return join(connection, file)


def unknown(connection: Any) -> str:
    """Make the error for an object that is no connection of a known library."""
    return (
        f"{name_type(connection, with_module=True)} cannot be joined; pass a sqlite3.Connection, "
        "a SQLAlchemy Session or Connection, django.db.connection, or with AsyncEngine an AsyncSession or "
        "AsyncConnection"
    )
