"""An ATOMIC unit through asyncpg: one transaction that holds the record and the handler's own writes.

asyncpg cannot send statements behind one another, so BEGIN, the claim, the settle and COMMIT are round trips of
their own: two before the handler and two after it. A handler ends no transaction with asyncpg but by SQL: a
``transaction()`` block of its own is a savepoint inside the unit's. After a COMMIT or ROLLBACK written as SQL nothing
more can be written, and the settle fails by itself, since the claim is not its transaction's own.
As with psycopg, a session begins its next command with its settings and its user reset.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from semel.core.flow import Ask, MakeFlow
from semel.errors import StoreError, StoreUnavailable
from semel.stores.deadline import Deadline
from semel.stores.pool import AsyncLifo, AsyncUnitPool
from semel.stores.postgres.asyncpg_driver import BROKEN, drop, is_lost, to_error
from semel.stores.postgres.errors import cannot_connect
from semel.stores.postgres.notices import Notices
from semel.stores.postgres.psycopg_driver import PostgresServer
from semel.stores.postgres.transaction import Library, Talk, UnitTalk, drive_async
from semel.stores.sql.statements import Query

T = TypeVar("T")

_LOST: Final = (OSError, asyncpg.PostgresError, *BROKEN)
_RESET: Final = "BEGIN; RESET ALL; RESET ROLE; END; "  # as in ``psycopg_unit``
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


class AsyncpgUnit(UnitTalk[AsyncpgUnitConnection]):
    """One transaction. Made by :class:`AsyncpgUnitPool`."""

    _library = Library(
        errors=(*_LOST, TimeoutError),
        not_own=asyncpg.DivisionByZeroError,
        told=to_error,
        is_lost=lambda error: isinstance(error, OSError) or is_lost(error),
    )

    def __init__(self, pool: AsyncpgUnitPool, connection: AsyncpgUnitConnection, deadline: Deadline) -> None:
        super().__init__(pool, connection)
        connection.handed_out = False
        self._lent: Any = None
        self._transaction = connection.transaction()
        self._deadline: Deadline | None = deadline  # of the call that is under way; None while the handler runs
        self._notices = Notices()

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
        return await drive_async(self._performing(make))

    async def _begin_again(self) -> None:
        async with asyncio.timeout(self._call().for_answer()):
            await self._transaction.rollback()
        self._transaction = self._connection.transaction()
        await self.begin()

    def _asking(self, needed: Query) -> Talk[list[Any]]:
        rows: list[Any] = yield lambda: self._ask(needed)
        return rows

    async def _ask(self, needed: Query) -> list[Any]:
        values = self._pool.server.values(needed.statement, needed.params)
        try:
            async with asyncio.timeout(self._call().for_answer()):
                rows = await self._connection.fetch(needed.statement.numbered, *values)
        except TimeoutError:  # asyncpg would wait for the answer before it says anything else
            self._connection.terminate()
            raise
        return [tuple(row) for row in rows]

    def hand_out(self) -> Any:
        """The connection: from here on only Semel ends the transaction."""
        self._connection.handed_out = self._connection.worn = True
        self._lent = PoolConnectionProxy(None, self._connection)
        self._deadline = None
        return self._lent

    async def settle_async(self, needed: Ask[Any]) -> bool:
        """Settle, then COMMIT. False: the claim is not this transaction's own; rolled back.

        Raises:
            HandlerRefused: the server refused the commit (a deferred constraint): rolled back.
            StoreTimeout: not answered: not known yet. NotReplicated: its wait for the standby was cut short.
        """
        return await drive_async(self._settling(needed))

    def _taking_back(self) -> Talk[None]:
        self._connection.handed_out = False
        self._deadline = Deadline(self._pool.server.patience_seconds)
        yield from ()

    async def _settle_and_commit(self, needed: Query) -> None:
        """Run the settle, then COMMIT: asyncpg cannot send them together."""
        await self._ask(needed)
        hear = self._notices.hear
        self._connection.add_log_listener(hear)
        try:
            async with asyncio.timeout(self._call().for_answer()):
                await self._transaction.commit()
        finally:
            self._connection.remove_log_listener(hear)  # asyncpg warns of one that is left where it is given back

    async def rollback_async(self) -> None:
        """End it; nothing of it remains. Safe to call at any time, also twice."""
        await drive_async(self._rolling_back())

    def _undoing(self) -> Talk[bool]:
        self._connection.handed_out = False
        try:
            yield self._undo
        except (*_LOST, TimeoutError):
            return False
        return True

    async def _undo(self) -> None:
        if not self._connection.is_closed() and self._connection.is_in_transaction():
            async with asyncio.timeout(self._call().for_answer()):
                await self._connection.execute("ROLLBACK")

    async def _give_back(self, sound: bool) -> None:
        raw = self._connection
        if self._lent is not None:
            self._lent._detach()  # what the handler may have kept of it is closed for good
            raw._on_release()
        raw.handed_out = False
        raw._top_xact = None  # it was ended by words, not by its object
        await self._pool.give(raw, sound=sound and not raw.is_closed())


class AsyncpgUnitPool(AsyncUnitPool[PostgresServer, AsyncpgUnitConnection]):
    """The connections of units, on each event loop that they are used on."""

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

    @staticmethod
    def _drop(lifo: AsyncLifo[AsyncpgUnitConnection]) -> None:
        for connection in lifo.forget_idle():
            drop(connection)

    async def close(self) -> None:
        """Close what is idle on this loop."""
        for connection in self.lifo.forget_idle():
            with suppress(*_LOST, TimeoutError):
                await connection.close(timeout=1)


def _unbegun(error: BaseException) -> StoreError:
    return StoreUnavailable(f"PostgreSQL: the transaction could not begin ({error}); retry with the same key")
