"""The idle reading connections of one SQLite driver: taken by whoever reads, given back after it."""

from __future__ import annotations

import sqlite3
from collections import deque
from typing import Final, NamedTuple

from semel.drivers.clock import Clock
from semel.drivers.sqlite_connection import Answer, Answering, open_connection, store_error

KEPT: Final = 8


class Reader(NamedTuple):
    """A reading connection, and how asks are performed on it."""

    connection: sqlite3.Connection
    answer: Answer


class Readers:
    """A small pool without waiting: where nobody is idle, another connection is opened."""

    def __init__(self, path: str, synchronous: str, clock: Clock, answering: Answering) -> None:
        self._path = path
        self._synchronous = synchronous
        self._clock = clock
        self._answering = answering
        self._idle: deque[Reader] = deque()

    def take(self) -> Reader:
        """An idle one, or a new one.

        Raises:
            StoreUnavailable: the file cannot be opened. SchemaError: there is none.
        """
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            connection = open_connection(self._path, self._synchronous, reading=True)
        except sqlite3.Error as error:
            raise store_error(error) from error
        return Reader(connection, self._answering(connection, self._clock))

    def give_back(self, reader: Reader) -> None:
        """It is idle again, or one too many."""
        if len(self._idle) < KEPT:
            self._idle.append(reader)
        else:
            reader.connection.close()

    def close(self) -> None:
        """Close all that are idle."""
        while self._idle:
            try:
                reader = self._idle.pop()
            except IndexError:  # somebody was quicker
                return
            reader.connection.close()
