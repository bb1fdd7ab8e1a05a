"""The idle reading connections of one SQLite driver: taken for a read, given back after it.

They are held still while the process forks. SQLite locks things in memory for moments; a thread that is in it just then
would leave them locked in the child for ever, where no thread is left to unlock them.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from semel.stores.clock import Clock
from semel.stores.sqlite.connection import Answer, Answering, open_connection, store_error

KEPT: Final = 8


class Reader(NamedTuple):
    """A reading connection, and how asks are performed on it."""

    connection: sqlite3.Connection
    answer: Answer


class Readers:
    """A small pool: where none is idle, another connection is opened. Each one taken is given back or discarded."""

    def __init__(
        self, path: str, synchronous: str, clock: Clock, answering: Answering, check_file: Callable[[], None]
    ) -> None:
        self._path = path
        self._synchronous = synchronous
        self._clock = clock
        self._answering = answering
        self._check_file = check_file  # of each connection that is opened
        self._idle: deque[Reader] = deque()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._out = 0
        self._held = False

    def take(self) -> Reader:
        """An idle one, or a new one.

        Raises:
            StoreUnavailable: the file cannot be opened. SchemaError: there is none.
        """
        with self._lock:
            while self._held:
                self._changed.wait()
            self._out += 1
            if self._idle:
                return self._idle.pop()
        try:
            connection = open_connection(self._path, self._synchronous, reading=True)
            try:
                self._check_file()
                return Reader(connection, self._answering(connection, self._clock))
            except BaseException:
                connection.close()
                raise
        except BaseException as error:
            self._came_back()
            if isinstance(error, sqlite3.Error):
                raise store_error(error, self._path) from error
            raise

    def give_back(self, reader: Reader) -> None:
        """It is idle again, or one too many."""
        with self._lock:
            kept = len(self._idle) < KEPT
            if kept:
                self._idle.append(reader)
                self._out -= 1
                if self._held:
                    self._changed.notify_all()
        if not kept:
            self.discard(reader)

    def discard(self, reader: Reader) -> None:
        """Close a connection that was taken."""
        try:
            reader.connection.close()
        finally:
            self._came_back()

    def _came_back(self) -> None:
        with self._changed:
            self._out -= 1
            if self._held:
                self._changed.notify_all()

    def hold(self, seconds: float) -> bool:
        """Give none until ``release``; False, and nothing is held, where one does not come back within ``seconds``."""
        with self._changed:
            self._held = True
            still = self._changed.wait_for(lambda: self._out == 0, seconds)
        if not still:
            self.release()
        return still

    def release(self) -> None:
        """Give again."""
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def close(self) -> None:
        """Close all that are idle."""
        while self._idle:
            try:
                reader = self._idle.pop()
            except IndexError:  # another thread was quicker
                return
            reader.connection.close()
