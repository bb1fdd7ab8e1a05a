"""An ATOMIC unit through asyncpg: one transaction that holds the record and the handler's own writes.

BEGIN travels with the claim and COMMIT with the settle, by ``pipeline``. Where the URL says ``prepared=no``, or
asyncpg has a version that was not read for this, each is a separate round trip. A handler can end the transaction only
by SQL: a ``transaction()`` block is a savepoint inside the unit's. After a COMMIT or ROLLBACK written as SQL nothing
more can be written, and the settle fails by itself, since the claim is not its transaction's own. As with psycopg, a
session begins its next command with its settings and its user reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from semel.core.flow import Ask, MakeFlow
from semel.stores.deadline import Deadline
from semel.stores.loops import socket_number
from semel.stores.pool import AsyncConnectionPool, AsyncUnitPool
from semel.stores.postgres.asyncpg.driver import BROKEN, drop, is_lost, open_connection, to_error
from semel.stores.postgres.asyncpg.pipeline import IS_KNOWN, PipedValues, execute_prepared, plain
from semel.stores.postgres.errors import cannot_connect
from semel.stores.postgres.notices import UNREPLICATED, Notices
from semel.stores.postgres.psycopg.driver import PostgresServer
from semel.stores.postgres.psycopg.pipeline import is_outdated
from semel.stores.postgres.rows import silent_settle
from semel.stores.postgres.transaction import Library, Talk, UnitTalk, drive_async
from semel.stores.process import part_in_children
from semel.stores.sql.statements import Query

T = TypeVar("T")

_LOST: Final = (OSError, asyncpg.PostgresError, *BROKEN)
_RESET: Final = ("BEGIN", "RESET ALL", "RESET ROLE", "END")  # as in ``psycopg/transaction``
_OVER: Final = "the transaction of this command is over: nothing more can be written in it"


class Unpiped(asyncpg.InternalClientError):  # type: ignore[misc]  # asyncpg carries no types
    """asyncpg did not send the statements in front of its own, or the server did not perform them."""


def is_stale(error: BaseException) -> bool:
    """Whether the connection had died before, so that a new one may work; False where the server hangs."""
    if isinstance(error, TimeoutError | Unpiped):
        return False
    return isinstance(error, OSError) or is_lost(error) or getattr(error, "severity_en", None) == "FATAL"


class AsyncpgUnitConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg carries no types
    """A handler's connection, which refuses to write once the unit's transaction is over."""

    __slots__ = ("handed_out", "kept", "notices", "worn")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.handed_out = False
        self.worn = False  # a handler has used the session since it was opened or reset
        self.kept: dict[str, Any] = {}  # the statements of units that its server has prepared
        self.notices = Notices()

    async def ask(self, text: str, values: Sequence[Any], deadline: Deadline, *ahead: str) -> list[Any]:
        """Fetch the rows of a statement that travels behind ``ahead``, statements without values.

        Raises TimeoutError: it was not answered in time, and the connection is closed.
        """
        state = self.kept.get(text)
        if state is None:
            state = await self._keep(text, deadline)
        return await self._send(state, values, plain(*ahead) if ahead else b"", deadline)

    async def commit_behind(self, text: str, values: Sequence[Any], deadline: Deadline) -> None:
        """Perform a statement that returns no rows, and COMMIT in the same round trip. Raises as ``ask``."""
        state = self.kept.get(text)
        if state is None:
            state = await self._keep(text, deadline)
        commit = self.kept.get("COMMIT")
        if commit is None:
            commit = await self._keep("COMMIT", deadline)
        await self._send(commit, (), execute_prepared(state.name, values), deadline)

    async def _keep(self, text: str, deadline: Deadline) -> Any:
        async with asyncio.timeout(deadline.for_answer()):
            statement = await self.prepare(text)
        state = self.kept[text] = statement._state
        state.attach()  # asyncpg closes a statement without references
        return state

    async def _send(self, state: Any, values: Sequence[Any], ahead: bytes, deadline: Deadline) -> list[Any]:
        late: list[bool] = []
        args = PipedValues(values, self._transport, ahead) if ahead else values
        timer = self._loop.call_later(deadline.for_answer(), self._end_late, late)
        try:
            rows: list[Any] = await self._protocol.bind_execute(
                state=state,
                args=args,
                portal_name="",
                limit=0,
                return_extra=False,
                timeout=None,
            )
        except Exception as error:
            if is_outdated(error):
                self.kept.clear()
            if late:
                raise TimeoutError from error
            if ahead and getattr(error, "severity", None) is None:
                self.terminate()  # not an error of the server: it is open how much was sent
            raise
        finally:
            timer.cancel()
        if isinstance(args, PipedValues) and not args.is_written:
            self.terminate()
            raise Unpiped("asyncpg sent a statement without those that belong before it")
        return rows

    def _end_late(self, late: list[bool]) -> None:
        late.append(True)
        self._transport.abort()  # asyncpg would wait for the answer before it says anything else

    def _process_log_message(self, fields: Any, last_query: Any) -> None:
        if UNREPLICATED in str(fields.get("M")):
            self.notices.unreplicated = True
        super()._process_log_message(fields, last_query)

    def _check_open(self) -> None:
        super()._check_open()
        if self.handed_out and not self.is_in_transaction():
            raise asyncpg.InterfaceError(_OVER)

    async def close(self, **options: Any) -> None:
        """Do nothing while the command runs: the unit still needs the connection."""
        if not self.handed_out:
            await super().close(**options)


class AsyncpgUnit(UnitTalk[AsyncpgUnitConnection]):
    """One transaction. Made by :class:`AsyncpgUnitPool`. Nothing is sent before the claim."""

    _library = Library(
        errors=(*_LOST, TimeoutError),
        not_own=asyncpg.DivisionByZeroError,
        told=to_error,
        is_lost=lambda error: isinstance(error, OSError) or is_lost(error),
    )

    def __init__(
        self, pool: AsyncpgUnitPool, connection: AsyncpgUnitConnection, deadline: Deadline, *, was_idle: bool
    ) -> None:
        super().__init__(pool, connection)
        connection.handed_out = False
        self._lent: Any = None
        self._deadline: Deadline | None = deadline  # of the call that is under way; None while the handler runs
        self._was_idle = was_idle
        self._begun = False

    @property
    def connection(self) -> Any:
        """Return the handler's connection, wrapped as asyncpg's own pool lends it."""
        if self._ended or self._lent is None:
            raise asyncpg.InterfaceError(_OVER)
        return self._lent

    def _call(self) -> Deadline:
        return self._deadline or Deadline(self._pool.server.patience_seconds)

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Run a flow inside the transaction, which the first statement begins.

        Raises:
            StoreUnavailable, StatementRefused: the server refused; nothing of the transaction remains.
            StoreTimeout: the connection was lost.
        """
        return await drive_async(self._performing(make))

    async def _begin_again(self) -> None:
        self._begun = False
        async with asyncio.timeout(self._call().for_answer()):
            await self._connection.execute("ROLLBACK")

    def _asking(self, needed: Query) -> Talk[list[Any]]:
        rows: list[Any]
        if self._begun:
            rows = yield partial(self._ask, needed)
            return rows
        self._begun = True
        try:
            rows = yield partial(self._begin, needed)
        except (*_LOST, TimeoutError) as error:
            if not self._was_idle or not is_stale(error):
                raise
        else:
            return rows
        # The connection died while it was idle.
        self._connection = yield partial(self._pool.instead_of, self._connection, self._deadline)
        rows = yield partial(self._begin, needed)
        return rows

    async def _begin(self, needed: Query) -> list[Any]:
        """Send BEGIN and the first statement in one round trip; reset a session that a handler has used first."""
        connection, keeps = self._connection, self._pool.pipelines
        reset = _RESET if connection.worn and keeps else ()
        ahead: tuple[str, ...] = (*reset, "BEGIN")
        if not keeps or needed.statement.numbered not in connection.kept:
            async with asyncio.timeout(self._call().for_answer()):
                await connection.execute("; ".join(ahead))
            ahead = ()
        rows = await self._ask(needed, *ahead)
        if not connection.is_in_transaction():  # the handler's rows would commit one by one
            connection.terminate()
            raise Unpiped("the transaction of an ATOMIC command did not begin")
        connection.worn = False
        connection._top_xact = connection.transaction()  # so that a handler's own blocks are savepoints
        return rows

    async def _ask(self, needed: Query, *ahead: str) -> list[Any]:
        values = self._pool.server.values(needed.statement, needed.params)
        connection, text = self._connection, needed.statement.numbered
        if self._pool.pipelines:
            rows = await connection.ask(text, values, self._call(), *ahead)
        else:
            try:
                async with asyncio.timeout(self._call().for_answer()):
                    rows = await connection.fetch(text, *values)
            except TimeoutError:  # asyncpg would wait for the answer before it says anything else
                connection.terminate()
                raise
        return list(map(tuple, rows))

    def hand_out(self) -> Any:
        """Give the handler the connection: from here on only Semel ends the transaction."""
        self._connection.handed_out = self._connection.worn = True
        self._lent = PoolConnectionProxy(None, self._connection)
        self._deadline = None
        return self._lent

    async def settle_async(self, needed: Ask[Any]) -> bool:
        """Settle, and COMMIT in the same round trip. False: the claim is not this transaction's own; rolled back.

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
        self._notices = self._connection.notices
        silent = silent_settle(needed.statement) if self._pool.pipelines else None
        if silent is None:
            await self._ask(needed)
            async with asyncio.timeout(self._call().for_answer()):
                await self._connection.execute("COMMIT")
        else:
            values = self._pool.server.values(silent, needed.params)
            await self._connection.commit_behind(silent.numbered, values, self._call())

    async def rollback_async(self) -> None:
        """Roll the transaction back. Safe to call at any time, also twice."""
        await drive_async(self._rolling_back())

    def _undoing(self) -> Talk[bool]:
        self._connection.handed_out = False
        try:
            yield self._undo
        except (*_LOST, TimeoutError):
            return False
        return True

    async def _undo(self) -> None:
        # asyncpg learns of a transaction from the answer to BEGIN, which it has not read after a cancelled claim.
        if not self._connection.is_closed() and (self._begun or self._connection.is_in_transaction()):
            async with asyncio.timeout(self._call().for_answer()):
                await self._connection.execute("ROLLBACK")

    async def _give_back(self, sound: bool) -> None:
        raw = self._connection
        if self._lent is not None:
            self._lent._detach()  # what the handler may have kept of it is closed for good
            raw._on_release()
        raw.handed_out = False
        raw._top_xact = None  # SQL ended it, not its transaction object
        await self._pool.give(raw, sound=sound and not raw.is_closed())


class AsyncpgUnitPool(AsyncUnitPool[PostgresServer, AsyncpgUnitConnection]):
    """The connections of units, on each event loop that they are used on."""

    @property
    def pipelines(self) -> bool:
        """Whether BEGIN and the settlement travel in front of another statement."""
        return IS_KNOWN and self.server.prepared

    async def begin(self) -> AsyncpgUnit:
        """Begin a unit on a connection of its own.

        Raises StoreUnavailable: none became free in time, or none could be opened.
        """
        lifo = self.lifo
        deadline = Deadline(self.server.patience_seconds)
        while True:
            connection, was_idle = await lifo.take(deadline)
            if not connection.is_closed():
                return AsyncpgUnit(self, connection, deadline, was_idle=was_idle)
            lifo.forget()

    async def instead_of(self, connection: AsyncpgUnitConnection, deadline: Deadline) -> AsyncpgUnitConnection:
        """Open a connection in place of one that was lost, and probably all idle ones with it."""
        connection.terminate()
        await self.close()
        return await self._open(deadline)

    async def give(self, connection: AsyncpgUnitConnection, *, sound: bool) -> None:
        """Return the connection to the pool, or drop it if it is not sound."""
        if sound:
            self.lifo.give(connection)
        else:
            connection.terminate()
            self.lifo.forget()

    async def _open(self, deadline: Deadline) -> AsyncpgUnitConnection:
        server = self.server
        settings = {"search_path": f"{server.schema},public"} if server.schema is not None else None
        try:
            connection: AsyncpgUnitConnection = await open_connection(
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
        part_in_children(connection._transport, socket_number)
        return connection

    @staticmethod
    def _drop(lifo: AsyncConnectionPool[AsyncpgUnitConnection]) -> None:
        for connection in lifo.forget_idle():
            drop(connection)

    async def close(self) -> None:
        """Close the idle connections of this loop."""
        for connection in self.lifo.forget_idle():
            with suppress(*_LOST, TimeoutError):
                await connection.close(timeout=1)
