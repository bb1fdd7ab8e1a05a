"""An ATOMIC unit through asyncpg: one transaction that holds the record and the handler's own writes.

asyncpg cannot send statements behind one another, so BEGIN, the claim, the settle and COMMIT are round trips of
their own: two before the handler and two after it. A handler ends no transaction with asyncpg but by SQL: a
``transaction()`` block of its own is a savepoint inside the unit's. After a COMMIT or ROLLBACK written as SQL nothing
more can be written, and the settle fails by itself, since the claim is not its transaction's own.
As with psycopg, a session begins its next command with its settings and its user reset.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Any, Final, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from semel.core.flow import Ask, MakeFlow
from semel.errors import HandlerRefused, StoreError, StoreUnavailable
from semel.stores.deadline import Deadline
from semel.stores.failures import WENT_ON
from semel.stores.loops import Loops
from semel.stores.pool import AsyncLifo
from semel.stores.postgres.asyncpg_driver import BROKEN, drop, told
from semel.stores.postgres.errors import cannot_connect, is_conflict
from semel.stores.postgres.notices import Notices
from semel.stores.postgres.psycopg_driver import CONFLICTS_MAX, PostgresServer
from semel.stores.postgres.psycopg_pipeline import is_outdated
from semel.stores.process import begin_in_children
from semel.stores.sql.statements import Query

T = TypeVar("T")

_LOST: Final = (OSError, asyncpg.PostgresError, *BROKEN)
_RESET: Final = "BEGIN; RESET ALL; RESET ROLE; END; "  # as in ``psycopg_unit``
_BROKEN: Final = (asyncpg.InFailedSQLTransactionError, asyncpg.InvalidSavepointSpecificationError)
_OVER: Final = "the transaction of this command is over: nothing more can be written in it"


class AsyncpgUnitConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg carries no types
    """What a handler writes on: refuses to write once the unit's transaction is over."""

    __slots__ = ("before", "handed_out", "worn")

    async def execute(self, query: str, *args: Any, **options: Any) -> str:
        """As asyncpg's; its BEGIN travels with what is to be said before it."""
        said, self.before = getattr(self, "before", ""), ""
        done: str = await super().execute(said + query, *args, **options)
        return done

    def _check_open(self) -> None:
        super()._check_open()
        if getattr(self, "handed_out", False) and not self.is_in_transaction():
            raise asyncpg.InterfaceError(_OVER)

    async def close(self, **options: Any) -> None:
        """Nothing, while the command runs: the unit needs it still."""
        if not getattr(self, "handed_out", False):
            await super().close(**options)


class AsyncpgUnit:
    """One transaction. Made by :class:`AsyncpgUnitPool`."""

    def __init__(self, pool: AsyncpgUnitPool, connection: AsyncpgUnitConnection, deadline: Deadline) -> None:
        self._raw = connection
        self._lent: Any = None
        self._pool = pool
        self._pid = os.getpid()
        self._transaction = connection.transaction()
        self._deadline: Deadline | None = deadline  # of the call that is under way; None while the handler runs
        self._ended = False

    @property
    def connection(self) -> Any:
        """What the handler writes on, as asyncpg's own pool lends it."""
        if self._ended or self._lent is None:
            raise asyncpg.InterfaceError(_OVER)
        return self._lent

    def _call(self) -> Deadline:
        return self._deadline or Deadline(self._pool.server.patience_seconds)

    async def begin(self) -> None:
        """BEGIN."""
        async with asyncio.timeout(self._call().for_answer()):
            await self._transaction.start()

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Run a flow inside the transaction.

        Raises:
            StoreUnavailable, StatementRefused: the server refused; nothing of the transaction remains.
            StoreTimeout: the connection was lost.
        """
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
            except (*_LOST, TimeoutError) as error:
                conflicts += 1
                again = is_conflict(error) or is_outdated(error)
                if isinstance(error, TimeoutError):  # asyncpg would wait for the answer before it says anything else
                    self._raw.terminate()
                if self._lent is not None or not again or conflicts > CONFLICTS_MAX:
                    raise told(error) from error
            await self._begin_again()  # the claim names its nonce, so it may be made again

    async def _begin_again(self) -> None:
        try:
            async with asyncio.timeout(self._call().for_answer()):
                await self._transaction.rollback()
            self._transaction = self._raw.transaction()
            await self.begin()
        except (*_LOST, TimeoutError) as error:
            raise told(error) from error

    async def _ask(self, needed: Query) -> list[Any]:
        server = self._pool.server
        values = server.values(needed.statement, needed.params)
        async with asyncio.timeout(self._call().for_answer()):
            rows = await self._raw.fetch(needed.statement.numbered, *values)
        return [tuple(row) for row in rows]

    def hand_out(self) -> Any:
        """The connection: from here on only Semel ends the transaction."""
        self._raw.handed_out = self._raw.worn = True
        self._lent = PoolConnectionProxy(None, self._raw)
        self._deadline = None
        return self._lent

    async def settle_async(self, needed: Ask[Any]) -> bool:
        """Settle, then COMMIT. False: the claim is not this transaction's own; rolled back.

        Raises:
            HandlerRefused: the server refused the commit (a deferred constraint): rolled back.
            StoreTimeout: not answered: not known yet. NotReplicated: its wait for the standby was cut short.
        """
        assert isinstance(needed, Query)
        if self._ended or self._pid != os.getpid():  # a forked handler's: as in ``rollback_async``
            return False
        self._raw.handed_out = False
        self._deadline = Deadline(self._pool.server.patience_seconds)
        try:
            await self._ask(needed)
        except asyncpg.DivisionByZeroError:
            await self.rollback_async()
            return False
        except _BROKEN as error:
            await self.rollback_async()
            raise HandlerRefused(WENT_ON) from error
        except TimeoutError as error:
            await self._end(sound=False)
            raise told(error) from error
        except _LOST as error:
            await self.rollback_async()
            raise told(error) from error
        await self._commit()
        return True

    async def _commit(self) -> None:
        notices = Notices()
        try:
            self._raw.add_log_listener(notices.hear)
            try:
                async with asyncio.timeout(self._call().for_answer()):
                    await self._transaction.commit()
            finally:
                self._raw.remove_log_listener(notices.hear)  # asyncpg warns of one that is left where it is given back
        except asyncpg.PostgresError as error:
            await self.rollback_async()
            raise told(error) from error
        except (*_LOST, TimeoutError) as error:
            await self._end(sound=False)
            raise told(error) from error
        await self._end(sound=not notices.unreplicated)
        notices.check()

    async def rollback_async(self) -> None:
        """End it; nothing of it remains. Safe to call at any time, also twice."""
        if self._ended:
            return
        if self._pid != os.getpid():  # a forked handler's: the parent's connection is not ours to speak on
            self._ended = True
            return
        self._raw.handed_out = False
        sound = False
        with suppress(*_LOST, TimeoutError):
            if not self._raw.is_closed() and self._raw.is_in_transaction():
                async with asyncio.timeout(self._call().for_answer()):
                    await self._raw.execute("ROLLBACK")
            sound = True
        await self._end(sound=sound)

    async def _end(self, *, sound: bool) -> None:
        if self._ended:
            return
        self._ended = True
        if self._lent is not None:
            self._lent._detach()  # what the handler may have kept of it is closed for good
            self._raw._on_release()
        self._raw.handed_out = False
        self._raw._top_xact = None  # it was ended by words, not by its object
        await self._pool.give(self._raw, sound=sound and not self._raw.is_closed())


class AsyncpgUnitPool:
    """The connections of units, on each event loop that they are used on."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self._inherited: list[object] = []  # a parent's connections: never used here, never closed
        self._begin()
        begin_in_children(self)

    def _begin(self) -> None:
        self._loops: Loops[AsyncLifo[AsyncpgUnitConnection]]
        self._loops = Loops(lambda: AsyncLifo(self._open, self.server.connections_max), _drop_idle)

    def begin_process(self) -> None:
        """In a forked child: begin without connections."""
        self._inherited.append(self._loops)
        self._begin()

    @property
    def lifo(self) -> AsyncLifo[AsyncpgUnitConnection]:
        """Those of this process and the running loop."""
        return self._loops.here()

    async def begin(self) -> AsyncpgUnit:
        """Begin a unit on a connection of its own.

        Raises StoreUnavailable: none became free in time, or none could be opened.
        """
        lifo = self.lifo
        deadline = Deadline(self.server.patience_seconds)
        while True:
            connection, was_idle = await lifo.take(deadline)
            worn, connection.worn = getattr(connection, "worn", False), False
            connection.before = _RESET if worn and self.server.prepared else ""
            try:
                unit = AsyncpgUnit(self, connection, deadline)
                await unit.begin()
                return unit
            except (*_LOST, TimeoutError) as error:
                connection.terminate()
                lifo.gone()
                if not was_idle or isinstance(error, TimeoutError):  # the server is not well
                    raise _unbegun(error) from error
            except BaseException:  # a caller that was cancelled leaves no transaction open
                connection.terminate()
                lifo.gone()
                raise

    async def give(self, connection: AsyncpgUnitConnection, *, sound: bool) -> None:
        """It is free again, or to be dropped."""
        if sound:
            self.lifo.give(connection)
        else:
            connection.terminate()
            self.lifo.gone()

    async def _open(self, deadline: Deadline) -> AsyncpgUnitConnection:
        server = self.server
        settings = {"search_path": f"{server.schema},public"} if server.schema is not None else None
        try:
            connection: AsyncpgUnitConnection = await asyncpg.connect(
                server.conninfo,
                connection_class=AsyncpgUnitConnection,
                timeout=deadline.before_sending(),
                statement_cache_size=100 if server.prepared else 0,
                server_settings=settings,
            )
        except asyncpg.PostgresError as error:
            raise cannot_connect(str(error), error.sqlstate) from error
        except (OSError, TimeoutError, *BROKEN) as error:
            raise cannot_connect(str(error) or type(error).__name__) from error
        return connection

    async def close(self) -> None:
        """Close what is idle on this loop."""
        for connection in self.lifo.forget_idle():
            with suppress(*_LOST, TimeoutError):
                await connection.close(timeout=1)


def _drop_idle(lifo: AsyncLifo[AsyncpgUnitConnection]) -> None:
    for connection in lifo.forget_idle():
        drop(connection)


def _unbegun(error: BaseException) -> StoreError:
    return StoreUnavailable(f"PostgreSQL: the transaction could not begin ({error}); retry with the same key")
