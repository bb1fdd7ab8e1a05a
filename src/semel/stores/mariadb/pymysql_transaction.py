"""ATOMIC units through PyMySQL (see ``transaction``).

The connection that is handed out ends no transaction: its ``commit()`` keeps the writes for Semel's COMMIT, its
``rollback()`` undoes the handler's writes alone.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, TypeVar

import pymysql

from semel.core.flow import Ask, MakeFlow
from semel.errors import SemelError
from semel.stores.deadline import Deadline
from semel.stores.mariadb.errors import Lost, MariadbRefused, connection_lost, parse_refusal, store_error
from semel.stores.mariadb.protocol import MariadbServer
from semel.stores.mariadb.pymysql_client import Taken, close, is_sound, open_connection, perform, wait_for
from semel.stores.mariadb.transaction import BUSY, LATE, Transaction, is_incomplete, undoes_all, undone, witness_end
from semel.stores.pool import ConnectionPool
from semel.stores.process import begin_in_children, part_in_children

T = TypeVar("T")


class PymysqlUnitConnection(pymysql.connections.Connection):  # type: ignore[misc]  # the library ships no types
    """A handler's connection. ``begin``, ``commit`` and ``rollback`` stay inside the unit."""

    transaction: Transaction | None = None  # while it is handed out
    left_writes = False  # whether the server warned that some writes remain after its own rollback
    was_cut = False  # during a statement, which the server may still be running
    was_lost = False  # during a statement, by the server or the network
    _was_undone = False

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
        """Send a statement; refuse one while another thread's is under way, whose answer it would read."""
        if not self.speaking.acquire(blocking=False):
            raise pymysql.err.InterfaceError(0, BUSY)
        try:
            with self._whole():
                if self._was_undone:  # the next statement's warnings would replace those
                    self._was_undone = False
                    self.left_writes |= is_incomplete(self.show_warnings())
                found: int = super().query(sql, unbuffered)
            return found
        finally:
            self.speaking.release()

    def next_result(self, unbuffered: bool = False) -> int:
        """Read the next result of several."""
        with self._whole():
            found: int = super().next_result(unbuffered)
        return found

    def _read_packet(self, *args: Any, **options: Any) -> Any:
        try:
            return super()._read_packet(*args, **options)
        except pymysql.MySQLError as error:
            self._was_undone = self._was_undone or undoes_all(error)
            self.was_lost = self.was_lost or parse_refusal(error) is None
            raise
        except BaseException:  # as ``_whole``, for each row
            self.was_cut = True
            self._force_close()
            raise

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Close the connection if an outside exception cuts an exchange: the next command would read its answer."""
        try:
            yield
        except pymysql.MySQLError:
            raise
        except BaseException:
            self.was_cut = True
            self._force_close()
            raise

    @cached_property
    def speaking(self) -> threading.Lock:
        """The lock that a thread holds while its statement is under way."""
        return threading.Lock()

    def cut(self) -> None:
        """Shut the socket down during a statement: a close alone would wait for the statement's reader."""
        self.was_cut = True
        if self._sock is not None:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def begin(self) -> None:
        """Do nothing inside a unit, whose transaction has begun already."""
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
    """Move the session to another object, and close the one that a handler or its cursors may have kept."""
    fresh = PymysqlUnitConnection.__new__(PymysqlUnitConnection)
    fresh.__dict__.update(connection.__dict__)
    fresh._result = None
    fresh.left_writes = fresh.was_cut = fresh.was_lost = fresh._was_undone = False
    fresh.cursorclass = pymysql.cursors.Cursor
    connection._sock = connection._rfile = None
    connection._closed = True
    return fresh


class PymysqlUnit:
    """One transaction of a thread's. Made by :class:`PymysqlUnitPool`; nothing is sent before the claim."""

    def __init__(self, pool: PymysqlUnitPool, taken: Taken, deadline: Deadline, *, was_idle: bool) -> None:
        self._pool = pool
        self._deadline: Deadline | None = deadline  # of the call that is under way; None while the handler runs
        self._taken = taken
        self._was_idle = was_idle
        self._pid = os.getpid()
        self._begun = False
        self._ended = False
        self._was_handed_out = False
        self.is_undecided = False  # whether its session may still be running a statement
        self.left_writes = False  # known once it is rolled back
        self._transaction = self._new_transaction()

    def _new_transaction(self) -> Transaction:
        return Transaction(self._pool.server.clock, self._taken[1])

    @property
    def connection(self) -> Any:
        """Return the handler's connection.

        Raises pymysql.err.InterfaceError after the end: the session is another command's by then.
        """
        if self._ended:
            raise pymysql.err.InterfaceError(0, LATE)
        return self._taken[0]

    def run(self, make: MakeFlow[T]) -> T:
        """Run a flow inside the transaction, which the first statement begins.

        Raises:
            StoreUnavailable, StatementRefused: the server refused; nothing of the transaction remains.
            StoreTimeout: the connection was lost.
        """
        first, self._begun = not self._begun, True
        try:
            return self._perform(make)
        except Lost as error:
            deadline = self._deadline
            if not first or not self._was_idle or deadline is None or deadline.is_over:  # it hangs
                raise connection_lost(error) from error
        except MariadbRefused as error:
            self._drop_unsound(error)
            raise store_error(error) from error
        # The connection died while it was idle. The claim names its nonce, so it may be repeated.
        self._taken = self._pool.instead_of(self._taken, deadline)
        self._transaction = self._new_transaction()
        try:
            return self._perform(make)
        except Lost as error:
            raise connection_lost(error) from error
        except MariadbRefused as error:
            self._drop_unsound(error)
            raise store_error(error) from error

    def _perform(self, make: MakeFlow[T]) -> T:
        connection = self.connection
        try:
            return perform(connection, self._transaction.run(make), self._call())
        finally:
            if self._deadline is None:  # the handler may take its time
                wait_for(connection, None)

    def _call(self) -> Deadline:
        return self._deadline or Deadline(self._pool.server.patience_seconds)

    def _drop_unsound(self, error: MariadbRefused) -> None:
        if not is_sound(error):
            close(self.connection)

    def _is_over(self) -> bool:
        if self._pid != os.getpid():  # a forked handler must not use its parent's connection
            self._ended = True
        return self._ended

    def hand_out(self) -> Any:
        """Hand out the connection: from here on only Semel ends the transaction, and the handler may take its time."""
        self.connection.transaction = self._transaction
        self._deadline = None
        self._was_handed_out = True
        wait_for(self.connection, None)
        return self.connection

    def settle(self, needed: Ask[Any]) -> bool:
        """Settle and COMMIT in one round trip. False: the claim is not this transaction's own; rolled back.

        Raises:
            StatementRefused: the server refused; rolled back.
            StoreTimeout: not answered: not known yet.
        """
        if self._is_over():
            return False
        if self.connection.speaking.locked():
            self._end_unanswered(self._call())
            raise undone(has_ended=not self.is_undecided)
        self._deadline = Deadline(self._pool.server.patience_seconds)
        try:
            stands = perform(self.connection, self._transaction.settle(needed), self._deadline)
        except Lost as error:
            self._end(sound=False)
            raise connection_lost(error) from error
        except MariadbRefused as error:
            if is_sound(error):
                self.rollback()
            else:
                self._end(sound=False)
            raise store_error(error) from error
        if stands:
            self._end(sound=True)
        else:
            self.rollback()
        return stands

    def rollback(self) -> None:
        """Roll the transaction back. Safe to call at any time, also twice."""
        if self._is_over():
            return
        deadline = self._call()
        is_answered = False
        if self._begun and self.connection.open and not self.connection.speaking.locked():
            self.connection.transaction = None
            wait_for(self.connection, deadline.for_answer())
            try:
                self.connection.query("ROLLBACK")
                self.left_writes = self.connection.left_writes
                if self.connection._result.warning_count:
                    self.left_writes |= is_incomplete(self.connection.show_warnings())
                is_answered = True
            except pymysql.MySQLError:
                self.connection.was_cut |= deadline.is_over
        if is_answered or not self._was_handed_out:
            self._end(sound=is_answered or not self._begun)
        else:
            self._end_unanswered(deadline)

    def _end_unanswered(self, deadline: Deadline) -> None:
        """End a unit whose ROLLBACK was not answered: check on another connection that it ended, and what remains."""
        connection, greeting = self._taken
        self._ended = True
        self.left_writes |= connection.left_writes
        if connection.speaking.locked():
            connection.cut()
        close(connection)
        was_cut, may_go_on = connection.was_cut, connection.was_cut or connection.was_lost
        try:
            other, met = self._pool.open_another(deadline)
            try:
                session = connection.thread_id() if may_go_on else None
                is_there = met.server == greeting.server and connection.thread_id() == greeting.session
                asked = witness_end(session, deadline.before_sending(), is_there=is_there, stops=was_cut)
                has_ended, may_remain = perform(other, asked, deadline)
            finally:
                close(other)
            self.is_undecided = not has_ended
            self.left_writes |= may_remain
        except (SemelError, Lost, MariadbRefused):
            self.is_undecided = may_go_on
        finally:
            self._pool.give(self._taken, sound=False)

    def _end(self, *, sound: bool) -> None:
        connection, greeting = self._taken
        self._ended = True
        connection.transaction = None
        if sound and connection.open and not connection.get_autocommit():
            self._pool.give((successor(connection), greeting), sound=True)
        else:
            if connection.speaking.locked():
                connection.cut()
            self._pool.give(self._taken, sound=False)


class PymysqlUnitPool:
    """The connections of a process's units, with the user's own settings and none of Semel's."""

    def __init__(self, server: MariadbServer) -> None:
        self.server = server
        self._inherited: list[object] = []
        self._begin()
        begin_in_children(self)

    def _begin(self) -> None:
        self.lifo: ConnectionPool[Taken] = ConnectionPool(self._open, self.server.connections_max)

    def begin_process(self) -> None:
        """Start without connections in a forked child."""
        self._inherited.append(self.lifo)
        self._begin()

    def begin(self) -> PymysqlUnit:
        """Begin a unit on a connection of its own.

        Raises StoreUnavailable: none became free in time, or none could be opened.
        """
        deadline = Deadline(self.server.patience_seconds)
        taken, was_idle = self.lifo.take(deadline)
        return PymysqlUnit(self, taken, deadline, was_idle=was_idle)

    def instead_of(self, taken: Taken, deadline: Deadline) -> Taken:
        """Open a connection in place of one that was lost, and probably all idle ones with it."""
        close(taken[0])
        self.close()
        return self._open(deadline)

    def open_another(self, deadline: Deadline) -> Taken:
        """Open a connection in place of a closed one; the caller closes it. Raises StoreUnavailable."""
        return self._open(deadline)

    def give(self, taken: Taken, *, sound: bool) -> None:
        """Return the connection to the pool, or drop it if it is not sound."""
        if sound:
            self.lifo.give(taken)
        else:
            close(taken[0])
            self.lifo.forget()

    def _open(self, deadline: Deadline) -> Taken:
        taken = open_connection(PymysqlUnitConnection, self.server, deadline, own=False)
        part_in_children(taken[0]._sock, socket.socket.fileno)
        return taken

    def close(self) -> None:
        """Close idle connections."""
        for connection, _ in self.lifo.forget_idle():
            close(connection)
