"""An ATOMIC unit through psycopg: one transaction that holds the record and the handler's own writes.

BEGIN travels with the claim and COMMIT with the settle, so that a fresh command costs the handler's own
transaction no round trip of its own. The connection that is handed out ends no transaction: its
``commit()`` keeps the writes for Semel's COMMIT, its ``rollback()`` undoes the handler's writes alone. A COMMIT
written as SQL does end it; then the settle fails by itself, since the claim is not its transaction's own.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import psycopg
from psycopg import Connection, RawCursor
from psycopg.pq import TransactionStatus

from semel.drivers.lifo import Lifo
from semel.drivers.postgres_errors import cannot_connect
from semel.drivers.psycopg import Server, is_lost, told
from semel.errors import EarlyCommit, StoreTimeout, StoreUnavailable
from semel.flow import Ask, MakeFlow
from semel.stores.statements import Query

T = TypeVar("T")

SAVEPOINT: Final = b"SAVEPOINT semel_unit"
ROLLBACK_TO: Final = b"ROLLBACK TO SAVEPOINT semel_unit"
OVER: Final = "the transaction was over before Semel could commit it"
GONE: Final = "the handler's transaction was rolled back by the server; nothing of it remains"


class UnitConnection(Connection[Any]):
    """What a handler writes on. ``commit`` and ``rollback`` stay inside the unit."""

    handed_out = False

    def commit(self) -> None:
        """Keep what was written so far for Semel's COMMIT."""
        if not self.handed_out:
            super().commit()

    def rollback(self) -> None:
        """Undo what the handler wrote; the record stays claimed."""
        if self.handed_out:
            self.execute(ROLLBACK_TO)
        else:
            super().rollback()


class PsycopgUnit:
    """One transaction of a thread's. Made by :class:`UnitPool`; nothing is sent before the claim."""

    def __init__(self, pool: UnitPool, connection: UnitConnection, *, was_idle: bool) -> None:
        self.connection = connection
        self._pool = pool
        self._was_idle = was_idle
        self._begun = False
        self._ended = False

    def run(self, make: MakeFlow[T]) -> T:
        """Run a flow inside the transaction, which the first statement begins.

        Raises:
            StoreUnavailable, StatementRefused: the server refused; nothing of the transaction remains.
            StoreTimeout: the connection was lost.
        """
        flow = make()
        try:
            needed = next(flow)
            while True:
                assert type(needed) is Query
                needed = flow.send(self._ask(needed))
        except StopIteration as stop:
            result: T = stop.value
            return result
        except psycopg.Error as error:
            raise told(error) from error

    def _ask(self, needed: Query) -> list[Any]:
        values = self._pool.server.values(needed.statement, needed.params)
        text = needed.statement.numbered.encode()
        if self._begun:
            if self.connection.info.transaction_status is TransactionStatus.INERROR:
                raise StoreUnavailable(GONE)
            return RawCursor(self.connection).execute(text, values, binary=True).fetchall()
        self._begun = True
        try:
            return _begin_with(self.connection, text, values)
        except psycopg.Error as error:
            if not self._was_idle or not is_lost(error):
                raise
        # It had died while nobody looked. The claim names its nonce, so it may be made again.
        self.connection = self._pool.instead_of(self.connection)
        return _begin_with(self.connection, text, values)

    def hand_out(self) -> UnitConnection:
        """The connection: from here on only Semel ends the transaction."""
        self.connection.handed_out = True
        return self.connection

    def settle(self, needed: Ask[Any], *, commit: bool) -> bool:
        """Settle, and COMMIT in the same round trip. False: the claim is not this transaction's own; rolled back.

        Raises:
            StatementRefused: the server refused the commit (a deferred constraint): rolled back.
            StoreTimeout: not answered: not known yet.
        """
        assert isinstance(needed, Query)
        if self._ended:
            return False
        connection = self.connection
        values = self._pool.server.values(needed.statement, needed.params)
        try:
            with connection.pipeline():
                RawCursor(connection).execute(needed.statement.numbered.encode(), values, binary=True)
                connection.execute(b"COMMIT")
        except psycopg.errors.DivisionByZero:
            self.rollback()
            return False
        except psycopg.errors.InFailedSqlTransaction as error:
            self.rollback()
            raise StoreUnavailable(GONE) from error
        except psycopg.Error as error:
            if is_lost(error):
                self._end(sound=False)
            else:
                self.rollback()
            raise told(error) from error
        self._end(sound=True)
        return True

    async def settle_async(self, needed: Ask[Any], *, commit: bool) -> bool:
        """As ``settle``; threads have no loop to block."""
        return self.settle(needed, commit=commit)

    def commit(self) -> None:
        """End it without a settle.

        Raises EarlyCommit where it was over already.
        """
        if self._ended or self.connection.info.transaction_status is TransactionStatus.IDLE:
            self._end(sound=True)
            raise EarlyCommit(OVER)
        try:
            self.connection.execute(b"COMMIT")
        except psycopg.Error as error:
            self._end(sound=False)
            raise StoreTimeout(f"the commit failed in the middle ({error}): not known yet") from error
        self._end(sound=True)

    def rollback(self) -> None:
        """End it; nothing of it remains. Safe to call at any time, also twice."""
        if self._ended:
            return
        sound = True
        if self._begun:
            try:
                self.connection.execute(b"ROLLBACK")
            except psycopg.Error:
                sound = False
        self._end(sound=sound)

    def _end(self, *, sound: bool) -> None:
        if self._ended:
            return
        self._ended = True
        idle = sound and self.connection.info.transaction_status is TransactionStatus.IDLE
        self.connection.handed_out = False
        self._pool.give(self.connection, sound=idle)

    async def run_async(self, make: MakeFlow[T]) -> T:
        """As ``run``; threads have no loop to block."""
        return self.run(make)

    async def commit_async(self) -> None:
        """As ``commit``."""
        self.commit()

    async def rollback_async(self) -> None:
        """As ``rollback``."""
        self.rollback()


class UnitPool:
    """The connections of a process's units, with the user's own settings and none of Semel's."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._lifo: Lifo[UnitConnection] = Lifo(self._open, server.connections_max)

    def begin(self) -> PsycopgUnit:
        """A unit on a connection of its own.

        Raises StoreUnavailable: none became free in time, or none could be opened.
        """
        while True:
            connection, was_idle = self._lifo.take(self.server.patience_seconds)
            if not connection.closed:
                return PsycopgUnit(self, connection, was_idle=was_idle)
            self._lifo.gone()

    def instead_of(self, connection: UnitConnection) -> UnitConnection:
        """A new connection for one that was lost, and probably all idle ones with it."""
        connection.close()
        self.close()
        return self._open()

    def give(self, connection: UnitConnection, *, sound: bool) -> None:
        """It is free again, or to be dropped."""
        if sound:
            self._lifo.give(connection)
        else:
            connection.close()
            self._lifo.gone()

    def _open(self) -> UnitConnection:
        try:
            return UnitConnection.connect(self.server.conninfo, **self.server.plain_options())
        except psycopg.Error as error:
            raise cannot_connect(str(error), error.sqlstate) from error

    def close(self) -> None:
        """Close what is idle."""
        for connection in self._lifo.forget_idle():
            connection.close()


def _begin_with(connection: UnitConnection, text: bytes, values: list[Any]) -> list[Any]:
    """BEGIN, the claim and the savepoint under which the handler works, in one round trip."""
    cursor = RawCursor(connection)
    with connection.pipeline():
        connection.execute(b"BEGIN")
        cursor.execute(text, values, binary=True)
        connection.execute(SAVEPOINT)
    return cursor.fetchall()
