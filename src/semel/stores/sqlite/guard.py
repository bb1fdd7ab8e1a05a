"""The connection that an ATOMIC handler writes on: it may do everything but end the transaction.

A handler may still run in its own thread when its unit ends: a deadline cancels the task that waits for the thread, not
the thread. So every statement takes a turn, and the unit's end is a turn too. Otherwise a write could land after the
ROLLBACK, outside any transaction, and the connection be closed while a thread uses it.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, Self, cast

_SAVEPOINT: Final = "semel_unit"


class SqliteUnitCursor(sqlite3.Cursor):
    """A cursor whose every step takes the connection's turn."""

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        with cast(SqliteUnitConnection, self.connection).writing():
            return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> Self:
        with cast(SqliteUnitConnection, self.connection).writing():
            return super().executemany(sql, parameters)

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        with cast(SqliteUnitConnection, self.connection).writing():
            return super().executescript(sql_script)

    def fetchone(self) -> Any:
        with cast(SqliteUnitConnection, self.connection).turn:
            return super().fetchone()

    def fetchmany(self, size: int | None = None) -> list[Any]:
        with cast(SqliteUnitConnection, self.connection).turn:
            return super().fetchmany(self.arraysize if size is None else size)

    def fetchall(self) -> list[Any]:
        with cast(SqliteUnitConnection, self.connection).turn:
            return super().fetchall()

    def __next__(self) -> Any:
        with cast(SqliteUnitConnection, self.connection).turn:
            return super().__next__()


class SqliteUnitConnection(sqlite3.Connection):
    """The connection of one unit. ``commit`` and ``rollback`` stay inside it, and its end closes it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.turn = threading.RLock()
        self._guarded = False
        self._over = False
        self._cursors: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet()

    # --- Semel's side ---------------------------------------------------------------------------

    def guard(self) -> None:
        """Let only Semel begin and end transactions on this connection from here on."""
        self.execute(f"SAVEPOINT {_SAVEPOINT}")
        self._set_guarded(True)

    @contextmanager
    def lift_guard(self) -> Iterator[None]:
        """Allow Semel's own statements in the middle of the unit, between two of the handler's."""
        with self.turn:
            guarded = self._guarded
            self._set_guarded(False)
            try:
                yield
            finally:
                self._set_guarded(guarded)

    @contextmanager
    def ending(self, *, hurry: bool = False) -> Iterator[None]:
        """Take the unit's last turn: keep the handler's savepoint, and then accept no more calls.

        Parameters: ``hurry`` interrupts a statement that a caller is still waiting for.
        """
        if not self.turn.acquire(blocking=False):
            if hurry:
                with suppress(sqlite3.Error):
                    self.interrupt()
            self.turn.acquire()
        try:
            if not self._over:
                self._set_guarded(False)
                # A cursor in the middle of its rows would keep the transaction open, even past the close.
                for cursor in list(self._cursors):
                    with suppress(sqlite3.Error):
                        cursor.close()
            yield
        finally:
            self._over = True
            self.close()
            self.turn.release()

    def _set_guarded(self, guarded: bool) -> None:
        if guarded is not self._guarded:
            self._guarded = guarded
            self.set_authorizer(_deny if guarded else None)

    # --- the handler's side ---------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Take a turn for a statement; refuse it once there is no transaction that it would be part of."""
        with self.turn:
            if self._over:
                raise sqlite3.ProgrammingError("this ATOMIC command is over; its connection takes nothing more")
            if self._guarded and not self.in_transaction:
                raise sqlite3.OperationalError(
                    "SQLite has rolled this ATOMIC command's transaction back; nothing more is written in it"
                )
            yield

    def cursor(self, factory: Any = None) -> Any:
        """Open a cursor that takes turns. Raises NotSupportedError for a cursor of another kind."""
        if factory is not None and factory is not sqlite3.Cursor:
            raise sqlite3.NotSupportedError("the connection of an ATOMIC command makes its own cursors")
        cursor = super().cursor(SqliteUnitCursor)
        self._cursors.add(cursor)
        return cursor

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor()
        return cursor.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor()
        return cursor.executemany(sql, parameters)

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor()
        return cursor.executescript(sql_script)

    def commit(self) -> None:
        """Keep the writes so far, whatever is rolled back later. The unit commits at its end."""
        with self.turn:
            if self._guarded:
                self.execute(f"RELEASE {_SAVEPOINT}")
                self.execute(f"SAVEPOINT {_SAVEPOINT}")

    def rollback(self) -> None:
        """Undo the writes since the last ``commit``. The record stays claimed."""
        with self.turn:
            if self._guarded:
                self.execute(f"ROLLBACK TO {_SAVEPOINT}")

    def __exit__(self, kind: object, error: object, trace: object, /) -> Literal[False]:
        if kind is None:
            self.commit()
        else:
            self.rollback()
        return False


def _deny(action: int, first: str | None, *_: object) -> int:
    # In WAL mode SQLite commits each attached file by itself: a crash between them would keep the record alone.
    attaches = action == sqlite3.SQLITE_ATTACH and first not in ("", ":memory:")
    return sqlite3.SQLITE_DENY if attaches or action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK
