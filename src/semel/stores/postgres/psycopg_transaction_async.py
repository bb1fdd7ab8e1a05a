"""ATOMIC units through psycopg on an event loop: the awaiting form of ``psycopg_unit``, which explains them."""

from __future__ import annotations

import os
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from semel.core.flow import Ask, MakeFlow
from semel.errors import HandlerRefused
from semel.stores.deadline import Deadline
from semel.stores.failures import WENT_ON
from semel.stores.loops import Loops
from semel.stores.pool import AsyncLifo
from semel.stores.postgres.errors import cannot_connect, is_conflict
from semel.stores.postgres.psycopg_arrays import with_arrays
from semel.stores.postgres.psycopg_driver import CONFLICTS_MAX, PostgresServer, is_lost, is_stale, told
from semel.stores.postgres.psycopg_pipeline import Said, is_outdated, said_async
from semel.stores.postgres.psycopg_timeout import PatientAsyncConnection, opening
from semel.stores.postgres.psycopg_transaction import (
    BROKEN,
    LATE,
    LEFT,
    NOTHING_TO_KEEP,
    RELEASE,
    ROLLBACK_TO,
    SAVEPOINT,
    before,
    successor,
)
from semel.stores.process import begin_in_children
from semel.stores.sql.statements import Query

T = TypeVar("T")


class AsyncPsycopgUnitConnection(PatientAsyncConnection):
    """What an async handler writes on. ``commit``, ``rollback`` and ``close`` stay inside the unit."""

    handed_out = False
    worn = False  # a handler had it since its session was as it is when it opens

    # Both are refused inside a ``transaction()`` block, by psycopg.

    async def commit(self) -> None:
        """Keep what was written so far for Semel's COMMIT, whatever is rolled back later."""
        if not self.handed_out or self._num_transactions:
            await super().commit()
        elif self.info.transaction_status not in NOTHING_TO_KEEP:
            async with self.pipeline():
                await self.execute(RELEASE)
                await self.execute(SAVEPOINT)

    async def rollback(self) -> None:
        """Undo what the handler wrote since its last ``commit``; the record stays claimed."""
        if not self.handed_out or self._num_transactions:
            await super().rollback()
        else:
            await self.execute(ROLLBACK_TO)

    async def close(self) -> None:
        """Nothing, while the command runs: the unit needs it still."""
        if not self.handed_out:
            await super().close()


class AsyncPsycopgUnit:
    """One transaction of an event loop's. Made by :class:`AsyncPsycopgUnitPool`; nothing is sent before the claim."""

    def __init__(self, pool: AsyncPsycopgUnitPool, connection: AsyncPsycopgUnitConnection, *, was_idle: bool) -> None:
        self._connection = connection
        self._pool = pool
        self._pid = os.getpid()
        self._was_idle = was_idle
        self._begun = False
        self._ended = False

    @property
    def connection(self) -> AsyncPsycopgUnitConnection:
        """What the handler writes on.

        Raises psycopg.ProgrammingError after the end: the connection is another command's by then.
        """
        if self._ended:
            raise psycopg.ProgrammingError(LATE)
        return self._connection

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Run a flow inside the transaction, which the first statement begins.

        Raises:
            StoreUnavailable, StatementRefused: the server refused; nothing of the transaction remains.
            StoreTimeout: the connection was lost, or has not answered in time.
        """
        connection = self._connection
        if not connection.handed_out:  # the call that begins the unit has its deadline already
            return await self._run(make)
        connection.deadline = Deadline(self._pool.server.patience_seconds)
        try:
            return await self._run(make)
        finally:
            connection.deadline = None  # the handler may take its time

    async def _run(self, make: MakeFlow[T]) -> T:
        conflicts = 0
        while True:
            flow = make()
            try:
                needed = next(flow)
                while True:
                    assert type(needed) is Query
                    needed = flow.send(await self._ask(needed))
            except StopIteration as stop:
                result: T = stop.value
                return result
            except psycopg.Error as error:
                conflicts += 1
                again = is_conflict(error) or is_outdated(error)
                if self._connection.handed_out or not again or conflicts > CONFLICTS_MAX:
                    raise told(error) from error
            await self._begin_again()

    async def _begin_again(self) -> None:
        """Another transaction was first. The claim names its nonce, so it may be made again, on a new snapshot."""
        try:
            await self._connection.execute(b"ROLLBACK")
        except psycopg.Error as error:
            raise told(error) from error
        self._begun = False

    async def _ask(self, needed: Query) -> list[Any]:
        values = with_arrays(needed.statement, self._pool.server.values(needed.statement, needed.params))
        text = needed.statement.numbered.encode()
        if self._begun:
            return await self._tripped((RELEASE, None), (text, values), (SAVEPOINT, None))
        self._begun = True
        begin: tuple[Said, ...] = ((b"BEGIN", None), (text, values), (SAVEPOINT, None))
        try:
            rows = await self._tripped(*before(self._connection, self._pool.server), *begin)
            self._connection.worn = False
            return rows
        except psycopg.Error as error:
            if not self._was_idle or not is_stale(error):
                raise
        # It had died while nobody looked.
        self._connection = await self._pool.instead_of(self._connection)
        return await self._tripped(*begin)

    async def _tripped(self, *statements: Said) -> list[Any]:
        """All of them in one round trip. The rows of the one that has values."""
        return await said_async(self._connection, *statements, prepared=self._pool.server.prepared)

    def hand_out(self) -> AsyncPsycopgUnitConnection:
        """The connection: from here on only Semel ends the transaction, and the handler may take its time."""
        self._connection.handed_out = self._connection.worn = True
        self._connection.deadline = None
        return self._connection

    async def settle_async(self, needed: Ask[Any]) -> bool:
        """Settle, and COMMIT in the same round trip. False: the claim is not this transaction's own; rolled back.

        Raises:
            HandlerRefused: the server refused the commit (a deferred constraint): rolled back.
            StoreTimeout: not answered: not known yet. NotReplicated: its wait for the standby was cut short.
        """
        assert isinstance(needed, Query)
        if self._ended or self._pid != os.getpid():  # a forked handler's: as in ``rollback_async``
            return False
        connection = self._connection
        if not await connection.is_left_alone(self._pool.server.patience_seconds):
            await self._end(sound=False)
            raise HandlerRefused(LEFT)
        connection.deadline = Deadline(self._pool.server.patience_seconds)
        values = with_arrays(needed.statement, self._pool.server.values(needed.statement, needed.params))
        try:
            await self._tripped((needed.statement.numbered.encode(), values), (b"COMMIT", None))
        except psycopg.errors.DivisionByZero:
            await self.rollback_async()
            return False
        except BROKEN as error:
            await self.rollback_async()
            raise HandlerRefused(WENT_ON) from error
        except psycopg.Error as error:
            if is_lost(error):
                await self._end(sound=False)
            else:
                await self.rollback_async()
            raise told(error) from error
        await self._end(sound=not connection.notices.unreplicated)
        connection.notices.check()
        return True

    async def rollback_async(self) -> None:
        """End it; nothing of it remains. Safe to call at any time, also twice."""
        if self._ended:
            return
        if self._pid != os.getpid():  # a forked handler's: the parent's connection is not ours to speak on
            self._ended = True
            return
        patience = self._pool.server.patience_seconds
        sound = await self._connection.is_left_alone(patience)
        if sound and self._connection.info.transaction_status is not TransactionStatus.IDLE:
            if self._connection.deadline is None:  # else it is the end of a call that has failed
                self._connection.deadline = Deadline(patience)
            try:
                if self._connection.handed_out:
                    await self._connection.execute(b"ROLLBACK")
                else:  # past psycopg, which would drop what it has prepared: no table can have gone
                    await said_async(self._connection, (b"ROLLBACK", None))
            except psycopg.Error:
                sound = False
        await self._end(sound=sound)

    async def _end(self, *, sound: bool) -> None:
        if self._ended:
            return
        self._ended = True
        idle = sound and self._connection.info.transaction_status is TransactionStatus.IDLE
        self._connection.handed_out = False
        await self._pool.give(self._connection, sound=idle)


class AsyncPsycopgUnitPool:
    """The connections of units, on each event loop that they are used on."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self._inherited: list[object] = []  # a parent's connections: never used here, never closed
        self._begin()
        begin_in_children(self)

    def _begin(self) -> None:
        self._loops: Loops[AsyncLifo[AsyncPsycopgUnitConnection]]
        self._loops = Loops(lambda: AsyncLifo(self._open, self.server.connections_max), drop)

    def begin_process(self) -> None:
        """In a forked child: begin without connections."""
        self._inherited.append(self._loops)
        self._begin()

    @property
    def lifo(self) -> AsyncLifo[AsyncPsycopgUnitConnection]:
        """Those of this process and the running loop."""
        return self._loops.here()

    async def begin(self) -> AsyncPsycopgUnit:
        """A unit on a connection of its own.

        Raises StoreUnavailable: none became free in time, or none could be opened.
        """
        lifo = self.lifo
        deadline = Deadline(self.server.patience_seconds)
        while True:
            connection, was_idle = await lifo.take(deadline)
            if not connection.closed:
                connection.deadline = deadline
                return AsyncPsycopgUnit(self, connection, was_idle=was_idle)
            lifo.gone()

    async def instead_of(self, connection: AsyncPsycopgUnitConnection) -> AsyncPsycopgUnitConnection:
        """A new connection for one that was lost, and probably all idle ones with it."""
        await connection.close()
        await self.close()
        assert connection.deadline is not None
        fresh = await self._open(connection.deadline)
        fresh.deadline = connection.deadline
        return fresh

    async def give(self, connection: AsyncPsycopgUnitConnection, *, sound: bool) -> None:
        """It is free again, or to be dropped."""
        if sound:
            self.lifo.give(successor(connection))
        else:
            await connection.close()
            self.lifo.gone()

    async def _open(self, deadline: Deadline) -> AsyncPsycopgUnitConnection:
        try:
            with opening(self.server.conninfo, deadline):
                return await AsyncPsycopgUnitConnection.connect(self.server.conninfo, **self.server.plain_options())
        except psycopg.Error as error:
            raise cannot_connect(str(error), error.sqlstate) from error

    async def close(self) -> None:
        """Close what is idle on this loop."""
        for connection in self.lifo.forget_idle():
            await connection.close()


def drop(lifo: AsyncLifo[AsyncPsycopgUnitConnection]) -> None:
    """Close what is idle on a loop that is over."""
    for connection in lifo.forget_idle():
        connection.pgconn.finish()
