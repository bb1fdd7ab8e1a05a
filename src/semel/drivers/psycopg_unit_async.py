"""ATOMIC units through psycopg on an event loop: the awaiting form of ``psycopg_unit``, which explains them."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.pq import TransactionStatus

from semel.drivers.lifo import AsyncLifo
from semel.drivers.postgres_errors import cannot_connect
from semel.drivers.psycopg import Server, is_lost, told
from semel.drivers.psycopg_unit import GONE, OVER, ROLLBACK_TO, SAVEPOINT
from semel.errors import EarlyCommit, StoreTimeout, StoreUnavailable
from semel.flow import Ask, MakeFlow
from semel.stores.statements import Query

T = TypeVar("T")


class AsyncUnitConnection(AsyncConnection[Any]):
    """What an async handler writes on. ``commit`` and ``rollback`` stay inside the unit."""

    handed_out = False

    async def commit(self) -> None:
        """Keep what was written so far for Semel's COMMIT."""
        if not self.handed_out:
            await super().commit()

    async def rollback(self) -> None:
        """Undo what the handler wrote; the record stays claimed."""
        if self.handed_out:
            await self.execute(ROLLBACK_TO)
        else:
            await super().rollback()


class AsyncPsycopgUnit:
    """One transaction of an event loop's. Made by :class:`AsyncUnitPool`; nothing is sent before the claim."""

    def __init__(self, pool: AsyncUnitPool, connection: AsyncUnitConnection, *, was_idle: bool) -> None:
        self.connection = connection
        self._pool = pool
        self._was_idle = was_idle
        self._begun = False
        self._ended = False

    async def run_async(self, make: MakeFlow[T]) -> T:
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
                needed = flow.send(await self._ask(needed))
        except StopIteration as stop:
            result: T = stop.value
            return result
        except psycopg.Error as error:
            raise told(error) from error

    async def _ask(self, needed: Query) -> list[Any]:
        values = self._pool.server.values(needed.statement, needed.params)
        text = needed.statement.numbered.encode()
        if self._begun:
            if self.connection.info.transaction_status is TransactionStatus.INERROR:
                raise StoreUnavailable(GONE)
            cursor = await AsyncRawCursor(self.connection).execute(text, values, binary=True)
            return await cursor.fetchall()
        self._begun = True
        try:
            return await self._begin_with(text, values)
        except psycopg.Error as error:
            if not self._was_idle or not is_lost(error):
                raise
        # It had died while nobody looked. The claim names its nonce, so it may be made again.
        self.connection = await self._pool.instead_of(self.connection)
        return await self._begin_with(text, values)

    async def _begin_with(self, text: bytes, values: list[Any]) -> list[Any]:
        connection = self.connection
        cursor = AsyncRawCursor(connection)
        try:
            async with asyncio.timeout(self._pool.server.patience_seconds), connection.pipeline():
                await connection.execute(b"BEGIN")
                await cursor.execute(text, values, binary=True)
                await connection.execute(SAVEPOINT)
        except TimeoutError as error:
            raise StoreTimeout("PostgreSQL did not answer in time: not known yet") from error
        return await cursor.fetchall()

    def hand_out(self) -> AsyncUnitConnection:
        """The connection: from here on only Semel ends the transaction."""
        self.connection.handed_out = True
        return self.connection

    async def settle_async(self, needed: Ask[Any], *, commit: bool) -> bool:
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
            async with connection.pipeline():
                cursor = AsyncRawCursor(connection)
                await cursor.execute(needed.statement.numbered.encode(), values, binary=True)
                await connection.execute(b"COMMIT")
        except psycopg.errors.DivisionByZero:
            await self.rollback_async()
            return False
        except psycopg.errors.InFailedSqlTransaction as error:
            await self.rollback_async()
            raise StoreUnavailable(GONE) from error
        except psycopg.Error as error:
            if is_lost(error):
                await self._end(sound=False)
            else:
                await self.rollback_async()
            raise told(error) from error
        await self._end(sound=True)
        return True

    async def commit_async(self) -> None:
        """End it without a settle.

        Raises EarlyCommit where it was over already.
        """
        if self._ended or self.connection.info.transaction_status is TransactionStatus.IDLE:
            await self._end(sound=True)
            raise EarlyCommit(OVER)
        try:
            await self.connection.execute(b"COMMIT")
        except psycopg.Error as error:
            await self._end(sound=False)
            raise StoreTimeout(f"the commit failed in the middle ({error}): not known yet") from error
        await self._end(sound=True)

    async def rollback_async(self) -> None:
        """End it; nothing of it remains. Safe to call at any time, also twice."""
        if self._ended:
            return
        sound = True
        if self._begun:
            try:
                await self.connection.execute(b"ROLLBACK")
            except psycopg.Error:
                sound = False
        await self._end(sound=sound)

    async def _end(self, *, sound: bool) -> None:
        if self._ended:
            return
        self._ended = True
        idle = sound and self.connection.info.transaction_status is TransactionStatus.IDLE
        self.connection.handed_out = False
        await self._pool.give(self.connection, sound=idle)

    def run(self, make: MakeFlow[T]) -> T:
        """Never asked: threads have units of their own (``psycopg_unit``)."""
        raise NotImplementedError

    def settle(self, needed: Ask[Any], *, commit: bool) -> bool:
        """Never asked, as ``run``."""
        raise NotImplementedError

    def commit(self) -> None:
        """Never asked, as ``run``."""
        raise NotImplementedError

    def rollback(self) -> None:
        """Never asked, as ``run``."""
        raise NotImplementedError


class AsyncUnitPool:
    """The connections of units, on each event loop that they are used on."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncLifo[AsyncUnitConnection]]
        self._loops = weakref.WeakKeyDictionary()

    def _lifo(self) -> AsyncLifo[AsyncUnitConnection]:
        loop = asyncio.get_running_loop()
        lifo = self._loops.get(loop)
        if lifo is None:
            lifo = self._loops[loop] = AsyncLifo(self._open, self.server.connections_max)
        return lifo

    async def begin(self) -> AsyncPsycopgUnit:
        """A unit on a connection of its own.

        Raises StoreUnavailable: none became free in time, or none could be opened.
        """
        lifo = self._lifo()
        while True:
            connection, was_idle = await lifo.take(self.server.patience_seconds)
            if not connection.closed:
                return AsyncPsycopgUnit(self, connection, was_idle=was_idle)
            lifo.gone()

    async def instead_of(self, connection: AsyncUnitConnection) -> AsyncUnitConnection:
        """A new connection for one that was lost, and probably all idle ones with it."""
        await connection.close()
        await self.close()
        return await self._open()

    async def give(self, connection: AsyncUnitConnection, *, sound: bool) -> None:
        """It is free again, or to be dropped."""
        if sound:
            self._lifo().give(connection)
        else:
            await connection.close()
            self._lifo().gone()

    async def _open(self) -> AsyncUnitConnection:
        try:
            return await AsyncUnitConnection.connect(self.server.conninfo, **self.server.plain_options())
        except psycopg.Error as error:
            raise cannot_connect(str(error), error.sqlstate) from error

    async def close(self) -> None:
        """Close what is idle on this loop."""
        for connection in self._lifo().forget_idle():
            await connection.close()
