"""The idle reading connections of one SQLite driver: taken for a read, given back after it.

They are paused while the process forks. SQLite takes short locks in memory; a thread inside SQLite at the fork would
leave them locked in the child for ever, because the child has no thread to unlock them.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from semel.stores.clock import Clock
from semel.stores.sqlite.connection import Answer, Answering, open_connection, store_error

KEPT: Final = 8


class Reader(NamedTuple):
    """A reading connection, and the function that performs asks on it."""

    connection: sqlite3.Connection
    answer: Answer


class Readers:
    """A small pool, which opens a connection if none is idle. Callers give back or discard each one they take.

    A read takes an idle one without the lock, because each method of a deque is atomic. So ``hold`` removes the idle
    ones, and ``give_back`` first makes its reader idle and then looks whether ``hold`` waits for it.
    """

    def __init__(
        self, path: str, synchronous: str, clock: Clock, answering: Answering, check_file: Callable[[], None]
    ) -> None:
        self._path = path
        self._synchronous = synchronous
        self._clock = clock
        self._answering = answering
        self._check_file = check_file  # checks each connection that is opened
        self._idle: deque[Reader] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._count = 0  # open connections: taken, idle or held
        self._held = False
        self._still: list[Reader] = []  # those that ``hold`` took away

    def take(self) -> Reader:
        """Take an idle one, or open a new one.

        Raises:
            StoreUnavailable: the file cannot be opened. SchemaError: there is none.
        """
        try:
            return self._idle.pop()
        except IndexError:
            return self._wait_or_open()

    def _wait_or_open(self) -> Reader:
        with self._changed:
            while self._held:
                self._changed.wait()
            with suppress(IndexError):
                return self._idle.pop()
            self._count += 1
        try:
            connection = open_connection(self._path, self._synchronous, reading=True)
            try:
                self._check_file()
                return Reader(connection, self._answering(connection, self._clock))
            except BaseException:
                connection.close()
                raise
        except BaseException as error:
            self._forget()
            if isinstance(error, sqlite3.Error):
                raise store_error(error, self._path) from error
            raise

    def give_back(self, reader: Reader) -> None:
        """Make a connection idle again, or close it if it is one too many."""
        idle = self._idle
        idle.append(reader)
        if self._held or len(idle) > KEPT:
            self._awaited_or_too_many()

    def _awaited_or_too_many(self) -> None:
        with self._changed:
            if self._held:
                self._changed.notify_all()
                return
        with suppress(IndexError):  # another thread took it
            self.discard(self._idle.pop())

    def discard(self, reader: Reader) -> None:
        """Close a connection that was taken."""
        try:
            reader.connection.close()
        finally:
            self._forget()

    def _forget(self) -> None:
        with self._changed:
            self._count -= 1
            if self._held:
                self._changed.notify_all()

    def hold(self, seconds: float) -> bool:
        """Take all connections until ``release``; take none and return False if one is not back within ``seconds``."""
        with self._changed:
            self._held = True
            still = self._changed.wait_for(self._all_came_back, seconds)
        if not still:
            self.release()
        return still

    def _all_came_back(self) -> bool:
        with suppress(IndexError):
            while True:
                self._still.append(self._idle.pop())
        return len(self._still) == self._count

    def release(self) -> None:
        """Let the connections be taken again."""
        with self._changed:
            self._held = False
            self._idle.extend(self._still)
            self._still.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """Close all that are idle or held."""
        for unused in (self._idle, self._still):
            with suppress(IndexError):  # there is none, or another thread was quicker
                while True:
                    self.discard(unused.pop())
