"""Joins the user's own transaction on SQLite: the record commits with their writes, when they commit.

Semel issues ``BEGIN IMMEDIATE`` itself: a transaction that began with a read can fail when it starts to write, and no
time-out helps against that. So a join comes before the first statement; Semel refuses an autocommit connection, a begun
transaction and a savepoint.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from semel.core.flow import Ask, MakeFlow, perform
from semel.errors import JoinRefused
from semel.stores.clock import Clock
from semel.stores.failures import SAVEPOINT_OPEN
from semel.stores.sql.statements import Execute as ExecuteAsk
from semel.stores.sql.statements import Now, Query
from semel.stores.sqlite.connection import is_busy, store_error

T = TypeVar("T")
Execute = Callable[[str, Any], tuple[list[Any], int]]

BUSY_PAUSE_SECONDS: Final = 0.005
AUTOCOMMIT: Final = (
    "this connection is in autocommit mode, so nothing would be committed together; open it with "
    "sqlite3.connect(path) (isolation_level 'DEFERRED', not None), or without isolation_level='AUTOCOMMIT'"
)
BEGUN: Final = (
    "a transaction has already begun on this connection (or a savepoint in one); join before its first "
    "statement: Semel begins the transaction itself, and you commit it"
)


ELSEWHERE: Final = (
    "this connection's database is another file than the store's, so nothing would be committed together; "
    "connect both to the same file"
)


ATTACHED: Final = (
    "another database file is attached to this connection ({names}): SQLite commits each file by itself, so that a "
    "crash could keep the record and lose the rows; DETACH it, and keep the rows in the store's own file"
)


@dataclass(frozen=True, slots=True)
class StoreFile:
    """The store that a transaction is joined to: its file, its clock, and how long to wait for its lock."""

    path: str
    clock: Clock
    busy_seconds: float


class JoinedUnit:
    """The user's transaction with the record in it. Its owner commits or rolls back, never Semel.

    A savepoint follows the claim. The settlement releases it, and with it every savepoint that was opened since:
    rolling back to one of those fails afterwards.

    Parameters: ``is_nested`` whether the user's library knows of a savepoint that is open.
    """

    def __init__(
        self, connection: Any, execute: Execute, clock: Clock, is_nested: Callable[[], bool] = lambda: False
    ) -> None:
        self.connection = connection
        self.execute = execute
        self.clock = clock
        self._is_nested = is_nested
        self._savepoint: str | None = None

    def run(self, make: MakeFlow[T]) -> T:
        """Run a store flow inside the transaction.

        Raises:
            JoinRefused: another file is attached, or a savepoint is open that was opened since the claim.
            StoreError: SQLite refused.
        """
        try:
            check_alone(self.execute)
            if self._savepoint is not None:
                self._release(self._savepoint)
                return perform(make(), self._answer)
            result = perform(make(), self._answer)
            self._savepoint = f"semel_{secrets.token_hex(8)}"
            self.execute(f"SAVEPOINT {self._savepoint}", ())
            return result
        except sqlite3.Error as error:
            raise store_error(error) from error

    def _release(self, savepoint: str) -> None:
        if self._is_nested():
            raise JoinRefused(SAVEPOINT_OPEN)
        try:
            self.execute(f"RELEASE {savepoint}", ())
        except sqlite3.OperationalError as error:
            if "no such savepoint" not in str(error):  # released before, or the transaction is over: the record tells
                raise

    async def run_async(self, make: MakeFlow[T]) -> T:
        """As ``run``: the file's lock is held already, so nothing waits."""
        return self.run(make)

    def _answer(self, needed: Ask[Any]) -> Any:
        if isinstance(needed, Now):
            return self.clock()
        assert isinstance(needed, (Query, ExecuteAsk))
        rows, changed = self.execute(needed.statement.qmark, needed.statement.values(needed.params))
        return changed if isinstance(needed, ExecuteAsk) else rows

    def hand_out(self) -> Any:
        """Do nothing: the user has the connection already."""
        return self.connection

    def rollback(self) -> None:
        """End the empty transaction that Semel began, because the claim met a verdict."""
        self.execute("ROLLBACK", ())

    async def rollback_async(self) -> None:
        """As ``rollback``."""
        self.rollback()


def join_sqlite(connection: sqlite3.Connection, file: StoreFile) -> JoinedUnit:
    """Join a ``sqlite3`` connection's next transaction.

    Raises:
        JoinRefused: another file, autocommit, or a transaction that has begun; the message says what to do.
        StoreUnavailable: the file's write lock was not free within its ``busy_seconds``.
    """
    check_joinable(connection)
    execute = executing(connection)
    begin_immediate(execute, file)
    return JoinedUnit(connection, execute, file.clock)


def executing(connection: sqlite3.Connection) -> Execute:
    """Make the function that executes statements on a connection, without the user's row and text factories."""

    def execute(text: str, params: Any) -> tuple[list[Any], int]:
        cursor = connection.cursor()
        cursor.row_factory = None
        factory = connection.text_factory
        connection.text_factory = str
        try:
            cursor.execute(text, params)
            return cursor.fetchall(), cursor.rowcount
        finally:
            connection.text_factory = factory
            cursor.close()

    return execute


def check_joinable(connection: Any) -> None:
    """Refuse a connection whose transaction cannot hold the record safely."""
    if connection.isolation_level is None or getattr(connection, "autocommit", None) is True:
        raise JoinRefused(AUTOCOMMIT)
    if connection.in_transaction:
        raise JoinRefused(BEGUN)


def begin_immediate(execute: Execute, file: StoreFile) -> None:
    """Take the write lock of the store's file on the user's connection, waiting at most its ``busy_seconds``."""
    ends = time.monotonic() + file.busy_seconds
    while True:
        try:
            if not is_of_file(execute, file):
                raise JoinRefused(ELSEWHERE)
            _begin_at_once(execute)
            return
        except sqlite3.Error as error:
            if not is_busy(error) or time.monotonic() >= ends:
                raise store_error(error) from error
        time.sleep(BUSY_PAUSE_SECONDS)


def check_alone(execute: Execute) -> None:
    """Raise JoinRefused if another database file is attached; databases in memory do not count."""
    databases, _ = execute("PRAGMA database_list", ())
    others = [name for _, name, path in databases if path and name not in ("main", "temp")]
    if others:
        raise JoinRefused(ATTACHED.format(names=", ".join(others)))


def is_of_file(execute: Execute, file: StoreFile) -> bool:
    """Whether a connection's database is the store's file."""
    databases, _ = execute("PRAGMA database_list", ())
    return any(name == "main" and _same_file(path, file.path) for _, name, path in databases)


def _begin_at_once(execute: Execute) -> None:
    """Begin at once or fail: the connection's own time-out would block an event loop, and exceed ours."""
    [[patience]], _ = execute("PRAGMA busy_timeout", ())
    execute("PRAGMA busy_timeout=0", ())
    try:
        execute("BEGIN IMMEDIATE", ())
    finally:
        execute(f"PRAGMA busy_timeout={int(patience)}", ())


def _same_file(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False  # one of them is in memory, or gone
