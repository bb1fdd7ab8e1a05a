"""An ATOMIC unit on SQLite: one transaction that holds the record and the handler's own writes.

The unit owns BEGIN IMMEDIATE and COMMIT. The connection it hands out lives in a savepoint: a handler's
stray ``commit()`` keeps its writes in the savepoint's parent and commits nothing; a COMMIT or BEGIN
written as SQL is denied. After the end the connection is closed to the handler, so that a late write
cannot land outside the transaction.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

from semel.drivers.sqlite import SqliteDriver
from semel.drivers.sqlite_connection import BEGIN, COMMIT, is_busy, open_connection, store_error
from semel.drivers.sqlite_job import Job
from semel.errors import EarlyCommit
from semel.flow import MakeFlow, perform

T = TypeVar("T")

BUSY_PAUSE_SECONDS: Final = 0.002
_SAVEPOINT: Final = "semel_unit"


class UnitConnection(sqlite3.Connection):
    """The connection that an ATOMIC handler writes on. ``commit`` and ``rollback`` stay inside the unit."""

    semel_guarded = False

    def guard(self) -> None:
        """From here on, only Semel begins and ends transactions on this connection."""
        self.execute(f"SAVEPOINT {_SAVEPOINT}")
        self.set_authorizer(_deny_transactions)
        self.semel_guarded = True

    def unguard(self) -> None:
        """Semel takes the connection back; the handler's savepoint is kept."""
        if self.semel_guarded:
            self.semel_guarded = False
            self.set_authorizer(None)

    def commit(self) -> None:
        """Keep what was written so far, whatever is rolled back later. The unit commits at its end."""
        if self.semel_guarded:
            self.execute(f"RELEASE {_SAVEPOINT}")
            self.execute(f"SAVEPOINT {_SAVEPOINT}")

    def rollback(self) -> None:
        """Undo what was written since the last ``commit``. The record stays claimed."""
        if self.semel_guarded:
            self.execute(f"ROLLBACK TO {_SAVEPOINT}")

    def __exit__(self, kind: object, error: object, trace: object, /) -> Literal[False]:
        if kind is None:
            self.commit()
        else:
            self.rollback()
        return False


def _deny_transactions(action: int, first: str | None, *_: object) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


class SqliteUnit:
    """One transaction holding the gate. Made by :func:`begin_unit` and :func:`begin_unit_async`."""

    def __init__(self, driver: SqliteDriver, connection: UnitConnection) -> None:
        self._driver = driver
        self._answer: Callable[[Any], Any] = driver.answering(connection, driver.clock)
        self.connection = connection
        self._ended = False
        self._pid = os.getpid()

    def run(self, make: MakeFlow[T]) -> T:
        """Run a flow inside the transaction. Quick: the file's lock is held already."""
        guarded = self.connection.semel_guarded
        self.connection.unguard()
        try:
            return perform(make(), self._answer)
        except sqlite3.Error as error:
            raise store_error(error) from error
        finally:
            if guarded:
                self.connection.set_authorizer(_deny_transactions)
                self.connection.semel_guarded = True

    async def run_async(self, make: MakeFlow[T]) -> T:
        """As ``run``: nothing waits inside the lock."""
        return self.run(make)

    async def rollback_async(self) -> None:
        """As ``rollback``: it is as quick."""
        self.rollback()

    def hand_out(self) -> UnitConnection:
        """The connection, guarded: from here on the handler may write."""
        self.connection.guard()
        return self.connection

    def commit(self) -> None:
        """End the unit well.

        Raises:
            EarlyCommit: the transaction was already over: somebody committed or rolled back behind our back.
            StoreTimeout: the commit itself failed; whether it took effect is not known yet.
        """
        self.connection.unguard()
        try:
            if not self.connection.in_transaction:
                raise EarlyCommit("the transaction was over before Semel could commit it")
            self._answer(COMMIT)
            self._driver.commits += 1
        except sqlite3.Error as error:
            raise store_error(error, committing=True) from error
        finally:
            self._end(keep=not self.connection.in_transaction)

    def rollback(self) -> None:
        """End the unit; nothing of it remains. Safe to call at any time, also twice."""
        if self._ended:
            return
        try:
            self.connection.unguard()
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # closing the connection in _end rolls back whatever is left
        finally:
            self._end(keep=False)

    def __del__(self) -> None:
        # A unit that nobody holds any more would keep the gate for ever. In a forked child it is not ours to end.
        if not self._ended and self._pid == os.getpid():
            self.rollback()

    def _end(self, *, keep: bool) -> None:
        if self._ended:
            return
        self._ended = True
        # The handler may still hold the connection. It is closed, never reused: a late write must fail.
        self.connection.close()
        self._driver.release_gate()

    async def commit_async(self) -> None:
        """As ``commit``; off the loop where commits are slow."""
        if self._driver.commit_was_slow():
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self.commit))
        else:
            self.commit()


def _open(driver: SqliteDriver, deadline: float) -> SqliteUnit:
    while True:
        connection: sqlite3.Connection | None = None
        try:
            connection = open_connection(driver.path, driver.synchronous, factory=UnitConnection)
            assert isinstance(connection, UnitConnection)
            driver.answering(connection, driver.clock)(BEGIN)
            return SqliteUnit(driver, connection)
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
            time.sleep(BUSY_PAUSE_SECONDS)


def _lending(driver: SqliteDriver, seconds: float) -> Job[SqliteUnit]:
    deadline = time.monotonic() + seconds
    return Job(None, deadline, lambda: _open(driver, deadline))


def begin_unit(driver: SqliteDriver, seconds: float) -> SqliteUnit:
    """Take the gate and the file's write lock, waiting at most ``seconds``.

    Raises:
        StoreUnavailable: the gate or the lock was not to be had in time.
    """
    job = _lending(driver, seconds)
    job.event = threading.Event()
    driver.submit(job)
    job.event.wait()
    return job.result()


async def begin_unit_async(driver: SqliteDriver, seconds: float) -> SqliteUnit:
    """As ``begin_unit``, without blocking the loop. A caller cancelled meanwhile leaves nothing open."""
    job = _lending(driver, seconds)
    loop = asyncio.get_running_loop()
    job.loop = loop
    job.future = future = loop.create_future()
    job.forsaken = _give_back
    driver.submit(job)
    try:
        await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(lambda _: _give_back(job))
        raise
    return job.result()


def _give_back(job: Job[SqliteUnit]) -> None:
    try:
        job.result().rollback()
    except Exception:  # noqa: BLE001 - its caller is gone
        return  # it never began: there is nothing to give back
