"""An ATOMIC unit through asyncpg: one transaction that holds the record and the handler's own writes.

asyncpg cannot send statements behind one another, so BEGIN, the claim, the settle and COMMIT are round trips of
their own: two before the handler and two after it. A handler ends no transaction with asyncpg but by SQL, or by
a ``transaction()`` block of its own, which inside the unit is a savepoint; a COMMIT written as SQL ends it, and then
the settle fails by itself, since the claim is not its transaction's own.
"""

from __future__ import annotations

import asyncio
import weakref
from contextlib import suppress
from typing import Any, Final, TypeVar

import asyncpg

from semel.drivers.asyncpg import told
from semel.drivers.lifo import AsyncLifo
from semel.drivers.postgres_errors import cannot_connect
from semel.drivers.psycopg import Server
from semel.errors import EarlyCommit, StoreError, StoreUnavailable
from semel.flow import Ask, MakeFlow
from semel.stores.statements import Query

T = TypeVar("T")

_LOST: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)
_GONE: Final = "the handler's transaction was rolled back by the server; nothing of it remains"


class AsyncpgUnit:
    """One transaction. Made by :class:`AsyncpgUnitPool`."""

    def __init__(self, pool: AsyncpgUnitPool, connection: Any) -> None:
        self.connection = connection
        self._pool = pool
        self._ended = False

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Run a flow inside the transaction.

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
        except _LOST as error:
            raise told(error) from error

    async def _ask(self, needed: Query) -> list[Any]:
        server = self._pool.server
        values = server.values(needed.statement, needed.params)
        rows = await self.connection.fetch(needed.statement.numbered, *values, timeout=server.patience_seconds)
        return [tuple(row) for row in rows]

    def hand_out(self) -> Any:
        """The connection: from here on only Semel ends the transaction."""
        return self.connection

    async def settle_async(self, needed: Ask[Any], *, commit: bool) -> bool:
        """Settle, then COMMIT. False: the claim is not this transaction's own; rolled back.

        Raises:
            StatementRefused: the server refused the commit (a deferred constraint): rolled back.
            StoreTimeout: not answered: not known yet.
        """
        assert isinstance(needed, Query)
        if self._ended:
            return False
        try:
            await self._ask(needed)
        except asyncpg.DivisionByZeroError:
            await self.rollback_async()
            return False
        except asyncpg.InFailedSQLTransactionError as error:
            await self.rollback_async()
            raise StoreUnavailable(_GONE) from error
        except _LOST as error:
            await self.rollback_async()
            raise told(error) from error
        await self.commit_async()
        return True

    async def commit_async(self) -> None:
        """End it well.

        Raises:
            EarlyCommit: it was over already.
            StoreTimeout: not answered: not known yet.
        """
        if self._ended or not self.connection.is_in_transaction():
            await self._end(sound=True)
            raise EarlyCommit("the transaction was over before Semel could commit it")
        try:
            await self.connection.execute("COMMIT", timeout=self._pool.server.patience_seconds)
        except (*_LOST, TimeoutError) as error:
            await self._end(sound=False)
            raise told(error) from error
        await self._end(sound=True)

    async def rollback_async(self) -> None:
        """End it; nothing of it remains. Safe to call at any time, also twice."""
        if self._ended:
            return
        sound = False
        with suppress(*_LOST, TimeoutError):
            if self.connection.is_in_transaction():
                await self.connection.execute("ROLLBACK", timeout=self._pool.server.patience_seconds)
            sound = True
        await self._end(sound=sound)

    async def _end(self, *, sound: bool) -> None:
        if self._ended:
            return
        self._ended = True
        await self._pool.give(self.connection, sound=sound and not self.connection.is_closed())

    def run(self, make: MakeFlow[T]) -> T:
        """Never asked: threads have units of psycopg's."""
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


class AsyncpgUnitPool:
    """The connections of units, on each event loop that they are used on."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncLifo[Any]]
        self._loops = weakref.WeakKeyDictionary()

    def _lifo(self) -> AsyncLifo[Any]:
        loop = asyncio.get_running_loop()
        lifo = self._loops.get(loop)
        if lifo is None:
            lifo = self._loops[loop] = AsyncLifo(self._open, self.server.connections_max)
        return lifo

    async def begin(self) -> AsyncpgUnit:
        """Begin a unit on a connection of its own.

        Raises StoreUnavailable: none became free in time, or none could be opened.
        """
        lifo = self._lifo()
        while True:
            connection, was_idle = await lifo.take(self.server.patience_seconds)
            try:
                await connection.execute("BEGIN", timeout=self.server.patience_seconds)
                return AsyncpgUnit(self, connection)
            except (*_LOST, TimeoutError) as error:
                connection.terminate()
                lifo.gone()
                if not was_idle:  # a new one at that: the server is not well
                    raise _unbegun(error) from error

    async def give(self, connection: Any, *, sound: bool) -> None:
        """It is free again, or to be dropped."""
        if sound:
            self._lifo().give(connection)
        else:
            connection.terminate()
            self._lifo().gone()

    async def _open(self) -> Any:
        server = self.server
        settings = {"search_path": f"{server.schema},public"} if server.schema is not None else None
        try:
            return await asyncpg.connect(
                server.conninfo,
                timeout=server.patience_seconds,
                statement_cache_size=100 if server.prepared else 0,
                server_settings=settings,
            )
        except asyncpg.PostgresError as error:
            raise cannot_connect(str(error), error.sqlstate) from error
        except (OSError, TimeoutError, asyncpg.InterfaceError) as error:
            raise cannot_connect(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """Close what is idle on this loop."""
        for connection in self._lifo().forget_idle():
            with suppress(*_LOST, TimeoutError):
                await connection.close(timeout=1)


def _unbegun(error: BaseException) -> StoreError:
    return StoreUnavailable(f"PostgreSQL: the transaction could not begin ({error}); retry with the same key")
