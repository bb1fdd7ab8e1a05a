"""ATOMIC units through psycopg on an event loop; ``transaction`` explains them."""

from __future__ import annotations

from typing import Any, TypeVar

import psycopg

from semel.core.flow import Ask, MakeFlow
from semel.stores.deadline import Deadline
from semel.stores.pool import AsyncConnectionPool, AsyncUnitPool
from semel.stores.postgres.errors import cannot_connect
from semel.stores.postgres.psycopg.driver import PostgresServer
from semel.stores.postgres.psycopg.pipeline import Said, execute_async
from semel.stores.postgres.psycopg.timeout import PatientAsyncConnection, opening
from semel.stores.postgres.psycopg.transaction import (
    NOTHING_TO_KEEP,
    RELEASE,
    ROLLBACK_TO,
    SAVEPOINT,
    SOCKET,
    PsycopgTalk,
    successor,
)
from semel.stores.postgres.transaction import drive_async
from semel.stores.process import part_in_children

T = TypeVar("T")


class AsyncPsycopgUnitConnection(PatientAsyncConnection):
    """An async handler's connection. ``commit``, ``rollback`` and ``close`` stay inside the unit."""

    handed_out = False
    worn = False  # a handler has used the session since it was opened or reset

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
        """Do nothing while the command runs: the unit still needs the connection."""
        if not self.handed_out:
            await super().close()


class AsyncPsycopgUnit(PsycopgTalk[AsyncPsycopgUnitConnection]):
    """One transaction of an event loop's. Made by :class:`AsyncPsycopgUnitPool`."""

    async def _execute(self, *statements: Said) -> list[Any]:
        return await execute_async(self._connection, *statements, prepared=self._pool.server.prepared)

    async def run_async(self, make: MakeFlow[T]) -> T:
        """As :meth:`PsycopgUnit.run <semel.stores.postgres.psycopg.transaction.PsycopgUnit.run>`."""
        return await drive_async(self._running(make))

    async def settle_async(self, needed: Ask[Any]) -> bool:
        """As :meth:`PsycopgUnit.settle <semel.stores.postgres.psycopg.transaction.PsycopgUnit.settle>`."""
        return await drive_async(self._settling(needed))

    async def rollback_async(self) -> None:
        """Roll the transaction back. Safe to call at any time, also twice."""
        await drive_async(self._rolling_back())


class AsyncPsycopgUnitPool(AsyncUnitPool[PostgresServer, AsyncPsycopgUnitConnection]):
    """The connections of units, on each event loop that they are used on."""

    async def begin(self) -> AsyncPsycopgUnit:
        """Begin a unit on a connection of its own.

        Raises StoreUnavailable: none became free in time, or none could be opened.
        """
        lifo = self.lifo
        deadline = Deadline(self.server.patience_seconds)
        while True:
            connection, was_idle = await lifo.take(deadline)
            if not connection.closed:
                connection.deadline = deadline
                return AsyncPsycopgUnit(self, connection, was_idle=was_idle)
            lifo.forget()

    async def instead_of(self, connection: AsyncPsycopgUnitConnection) -> AsyncPsycopgUnitConnection:
        """Open a connection in place of one that was lost, and probably all idle ones with it."""
        await connection.close()
        await self.close()
        assert connection.deadline is not None
        fresh = await self._open(connection.deadline)
        fresh.deadline = connection.deadline
        return fresh

    async def give(self, connection: AsyncPsycopgUnitConnection, *, sound: bool) -> None:
        """Return a sound connection to the pool, and close any other."""
        if sound:
            self.lifo.give(successor(connection))
        else:
            await connection.close()
            self.lifo.forget()

    async def _open(self, deadline: Deadline) -> AsyncPsycopgUnitConnection:
        try:
            with opening(self.server.conninfo, deadline):
                opened = await AsyncPsycopgUnitConnection.connect(self.server.conninfo, **self.server.plain_options())
        except psycopg.Error as error:
            raise cannot_connect(str(error), error.sqlstate) from error
        part_in_children(opened.pgconn, SOCKET)
        return opened

    async def close(self) -> None:
        """Close the idle connections of this loop."""
        for connection in self.lifo.forget_idle():
            await connection.close()

    @staticmethod
    def _drop(lifo: AsyncConnectionPool[AsyncPsycopgUnitConnection]) -> None:
        for connection in lifo.forget_idle():
            connection.finish()
