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
from typing import Any, Final, TypeVar

from semel.core.flow import MakeFlow, perform
from semel.errors import EarlyCommit, HandlerRefused, StoreUnavailable
from semel.stores.failures import WENT_ON, with_causes
from semel.stores.shield import later
from semel.stores.sqlite.connection import BEGIN, FileLocked, is_busy, open_connection, outlives_its_cause, store_error
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.guard import SqliteUnitConnection
from semel.stores.sqlite.job import FlowJob

T = TypeVar("T")

BUSY_PAUSE_SECONDS: Final = 0.002


class SqliteUnit:
    """One transaction holding the gate. Made by :func:`begin_unit` and :func:`begin_unit_async`."""

    def __init__(self, driver: SqliteDriver, connection: SqliteUnitConnection) -> None:
        self._driver = driver
        self._answer: Callable[[Any], Any] = driver.answering(connection, driver.clock)
        self.connection = connection
        self._ended = False
        self._pid = os.getpid()

    def run(self, make: MakeFlow[T]) -> T:
        """Run a flow inside the transaction; quick, because the file's lock is held already.

        Raises:
            HandlerRefused: SQLite had ended the transaction (a conflict's ROLLBACK), and the handler went on.
        """
        try:
            with self.connection.lift_guard():
                if not self.connection.in_transaction:
                    raise HandlerRefused(WENT_ON)
                return perform(make(), self._answer)
        except sqlite3.Error as error:
            if outlives_its_cause(error):
                self._driver.close_idle()
            raise store_error(error, self._driver.path) from error

    async def run_async(self, make: MakeFlow[T]) -> T:
        """As ``run``: nothing waits inside the lock."""
        return self.run(make)

    async def rollback_async(self) -> None:
        """As ``rollback``: it is as quick."""
        self.rollback()

    def hand_out(self) -> SqliteUnitConnection:
        """Give the handler the connection, guarded: from here on it may write."""
        try:
            self.connection.guard()
        except sqlite3.Error as error:
            raise store_error(error, self._driver.path) from error
        return self.connection

    def commit(self) -> None:
        """Commit the unit.

        Raises:
            EarlyCommit: the transaction was already over: the handler committed it or rolled it back.
            StoreTimeout: the commit itself failed; whether it took effect is not known yet.
        """
        if self._ended:
            raise EarlyCommit("the transaction was over before Semel could commit it")
        try:
            # The handler may still hold the connection. It is closed, never reused: a late write must fail.
            with self.connection.ending():
                if not self.connection.in_transaction:
                    raise EarlyCommit("the transaction was over before Semel could commit it")
                self._driver.commit(self._answer)
        except sqlite3.Error as error:
            raise store_error(error, self._driver.path, committing=True) from error
        finally:
            self._end()

    def rollback(self) -> None:
        """Roll the unit back. Safe to call at any time, also twice."""
        if self._ended:
            return
        try:
            with self.connection.ending(hurry=True):
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # the close has rolled back whatever was left
        finally:
            self._end()

    def locks_out(self, error: BaseException) -> bool:
        """Whether the handler's error is a failed wait for this transaction's own lock."""
        return any(isinstance(each, FileLocked) and each.path == self._driver.path for each in with_causes(error))

    def __del__(self) -> None:
        # An abandoned unit would keep the gate for ever. A forked child must not end its parent's.
        if not self._ended and self._pid == os.getpid():
            later(self.rollback)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
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
            connection = open_connection(driver.path, driver.synchronous, factory=SqliteUnitConnection)
            assert isinstance(connection, SqliteUnitConnection)
            driver.check_file()
            driver.answering(connection, driver.clock)(BEGIN)
            return SqliteUnit(driver, connection)
        except (sqlite3.Error, StoreUnavailable) as error:
            if connection is not None:
                connection.close()
            if not isinstance(error, sqlite3.Error) or not is_busy(error) or time.monotonic() >= deadline:
                raise
            time.sleep(BUSY_PAUSE_SECONDS)


def _lending(driver: SqliteDriver, seconds: float) -> FlowJob[SqliteUnit]:
    deadline = time.monotonic() + seconds
    return FlowJob(None, deadline, lambda: _open(driver, deadline))


def begin_unit(driver: SqliteDriver, seconds: float) -> SqliteUnit:
    """Take the gate and the file's write lock, waiting at most ``seconds``.

    Raises:
        StoreUnavailable: the gate or the lock was not free in time.
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


def _give_back(job: FlowJob[SqliteUnit]) -> None:
    try:
        job.result().rollback()
    except Exception:  # noqa: BLE001 - its caller is gone
        return  # it never began: there is nothing to give back
