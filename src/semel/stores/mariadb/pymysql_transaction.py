"""ATOMIC units through PyMySQL (see ``unit_talk``).

The connection that is handed out ends no transaction: its ``commit()`` keeps the writes for Semel's COMMIT, its
``rollback()`` undoes the handler's writes alone.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeVar

import pymysql

from semel.core.flow import Ask, MakeFlow
from semel.stores.deadline import Deadline
from semel.stores.mariadb.protocol import Conversation, MariadbServer
from semel.stores.mariadb.pymysql_client import Taken, close, open_connection, perform, wait_for
from semel.stores.mariadb.transaction import BUSY, Transaction, is_incomplete, undoes_all
from semel.stores.mariadb.unit_talk import Library, MariadbTalk
from semel.stores.pool import Lifo
from semel.stores.process import begin_in_children
from semel.stores.talk import drive

T = TypeVar("T")


class PymysqlUnitConnection(pymysql.connections.Connection):  # type: ignore[misc]  # the library ships no types
    """What a handler writes on. ``begin``, ``commit`` and ``rollback`` stay inside the unit."""

    transaction: Transaction | None = None  # while it is handed out
    left_writes = False  # whether the server warned, after a rollback of its own, that some of the writes remain
    _was_undone = False

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
        """Send a statement; refused while another thread waits for one: each would read the other's answer."""
        if not self.speaking.acquire(blocking=False):
            raise pymysql.err.InterfaceError(0, BUSY)
        try:
            with self._whole():
                if self._was_undone:  # the next statement's warnings would take the place of those
                    self._was_undone = False
                    self.left_writes |= is_incomplete(self.show_warnings())
                found: int = super().query(sql, unbuffered)
            return found
        finally:
            self.speaking.release()

    def next_result(self, unbuffered: bool = False) -> int:
        """The next one of several."""
        with self._whole():
            found: int = super().next_result(unbuffered)
        return found

    def _read_packet(self, *args: Any, **options: Any) -> Any:
        try:
            return super()._read_packet(*args, **options)
        except pymysql.MySQLError as error:
            self._was_undone = self._was_undone or undoes_all(error)
            raise
        except BaseException:  # as ``_whole``, for each row
            self._force_close()
            raise

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """An exchange that an exception from outside cuts leaves an answer unread: the next command would get it."""
        try:
            yield
        except pymysql.MySQLError:
            raise
        except BaseException:
            self._force_close()
            raise

    @cached_property
    def speaking(self) -> threading.Lock:
        """Held while a statement is under way."""
        return threading.Lock()

    def cut(self) -> None:
        """End it under the statement that is under way: a close alone would wait for its reader."""
        if self._sock is not None:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def begin(self) -> None:
        """Does nothing while the unit is open: it has begun."""
        if self.transaction is None:
            super().begin()

    def commit(self) -> None:
        """Keep what was written so far for Semel's COMMIT, whatever is rolled back later."""
        if self.transaction is None:
            super().commit()
        else:
            self.query(self.transaction.keep())

    def rollback(self) -> None:
        """Undo what the handler wrote since its last ``commit``; the record stays claimed."""
        if self.transaction is None:
            super().rollback()
        else:
            self.query(self.transaction.undo())


def successor(connection: PymysqlUnitConnection) -> PymysqlUnitConnection:
    """The same session under another object; the one that a handler may have kept, also in cursors, is closed."""
    fresh = PymysqlUnitConnection.__new__(PymysqlUnitConnection)
    fresh.__dict__.update(connection.__dict__)
    fresh._result = None
    fresh.left_writes = fresh._was_undone = False
    fresh.cursorclass = pymysql.cursors.Cursor
    connection._sock = connection._rfile = None
    connection._closed = True
    return fresh


def _is_busy(connection: PymysqlUnitConnection) -> bool:
    return connection.speaking.locked()


class PymysqlUnit(MariadbTalk):
    """One transaction of a thread's. Made by :class:`PymysqlUnitPool`."""

    _library = Library(
        (pymysql.MySQLError,), pymysql.err.InterfaceError, attrgetter("open"), _is_busy, successor, close
    )

    def run(self, make: MakeFlow[T]) -> T:
        """Run a flow inside the transaction, which the first statement begins.

        Raises:
            StoreUnavailable, StatementRefused: the server refused; nothing of the transaction remains.
            StoreTimeout: the connection was lost.
        """
        return drive(self._running(make))

    def settle(self, needed: Ask[Any]) -> bool:
        """Settle and COMMIT in one round trip. False: the claim is not this transaction's own; rolled back.

        Raises:
            StatementRefused: the server refused; rolled back.
            StoreTimeout: not answered: not known yet.
        """
        return drive(self._settling(needed))

    def rollback(self) -> None:
        """End it; nothing of it remains. Safe to call at any time, also twice."""
        drive(self._rolling_back())

    def hand_out(self) -> Any:
        """As :meth:`MariadbTalk.hand_out`, without a timeout of each answer."""
        connection = super().hand_out()
        wait_for(connection, None)
        return connection

    def _perform(self, conversation: Conversation[T]) -> T:
        connection = self.connection
        try:
            return perform(connection, conversation, self._call())
        finally:
            if self._deadline is None:  # the handler may take its time
                wait_for(connection, None)

    def _undo(self) -> None:
        connection = self.connection
        wait_for(connection, self._call().for_answer())
        connection.query("ROLLBACK")
        self.left_writes = connection.left_writes
        if connection._result.warning_count:
            self.left_writes |= is_incomplete(connection.show_warnings())


class PymysqlUnitPool:
    """The connections of a process's units, with the user's own settings and none of Semel's."""

    def __init__(self, server: MariadbServer) -> None:
        self.server = server
        self._inherited: list[object] = []
        self._begin()
        begin_in_children(self)

    def _begin(self) -> None:
        self.lifo: Lifo[Taken] = Lifo(self._open, self.server.connections_max)

    def begin_process(self) -> None:
        """In a forked child: begin without connections."""
        self._inherited.append(self.lifo)
        self._begin()

    def begin(self) -> PymysqlUnit:
        """A unit on a connection of its own.

        Raises StoreUnavailable: none became free in time, or none could be opened.
        """
        deadline = Deadline(self.server.patience_seconds)
        taken, was_idle = self.lifo.take(deadline)
        return PymysqlUnit(self, taken, deadline, was_idle=was_idle)

    def instead_of(self, taken: Taken, deadline: Deadline) -> Taken:
        """A new connection for one that was lost, and probably all idle ones with it."""
        close(taken[0])
        self.close()
        return self._open(deadline)

    def drop(self, connection: PymysqlUnitConnection) -> None:
        """Close a connection that must not be used again."""
        if connection.speaking.locked():
            connection.cut()
        close(connection)
        self.lifo.forget()

    def _open(self, deadline: Deadline) -> Taken:
        return open_connection(PymysqlUnitConnection, self.server, deadline, own=False)

    def close(self) -> None:
        """Close what is idle."""
        for connection, _ in self.lifo.forget_idle():
            close(connection)
