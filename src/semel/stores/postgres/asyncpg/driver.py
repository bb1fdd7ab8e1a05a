"""The asyncpg driver of the PostgreSQL store: flows on event loops. Threads (and the CLI) go through psycopg.

A few connections of one's own, not asyncpg's pool: its reset on release costs a round trip a call. Statements are
prepared once per connection by asyncpg itself, or never where the URL says ``prepared=no``.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final, TypeVar

import asyncpg

from semel.core.flow import Flow, MakeFlow
from semel.errors import SemelError, StatementRefused, StoreTimeout, StoreUnavailable
from semel.stores.deadline import Deadline
from semel.stores.failures import or_still_unknown, still_unknown
from semel.stores.loops import Loops, cut
from semel.stores.pool import AsyncLifo, ClosesAsync
from semel.stores.postgres.errors import cannot_connect, is_conflict, store_error
from semel.stores.postgres.notices import Notices
from semel.stores.postgres.psycopg.driver import CONFLICTS_MAX, PostgresServer, PsycopgDriver
from semel.stores.process import begin_in_children
from semel.stores.sql.statements import Query, Script, Together

T = TypeVar("T")

_SAID: Final = (asyncpg.PostgresError, asyncpg.DataError, SemelError)  # the connection is fine: it refused
# The second: the server's farewell was read, but not yet the end of the stream. Nothing was sent then.
BROKEN: Final = (asyncpg.InterfaceError, asyncpg.InternalClientError)
PLANNING: Final = {
    "plan_cache_mode": "force_custom_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "default_transaction_isolation": "read committed",
}


class AsyncpgDriver:
    """Runs the PostgreSQL store's flows: on event loops by asyncpg, in threads by psycopg."""

    coalesces = True

    def __init__(self, server: PostgresServer, threads: PsycopgDriver, units: ClosesAsync) -> None:
        self.server = server
        self._sync = threads
        self._units = units
        self._inherited: list[object] = []
        self._begin()
        begin_in_children(self)

    def _begin(self) -> None:
        self._loops = Loops(lambda: _Loop(self.server), _Loop.drop_idle)

    def begin_process(self) -> None:
        """In a forked child: begin without connections."""
        self._inherited.append(self._loops)
        self._begin()

    def run(self, make: MakeFlow[T]) -> T:
        """Run a flow from an ordinary thread, by psycopg."""
        return self._sync.run(make)

    def close(self) -> None:
        """Close what is idle."""
        self._sync.close()

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Run a flow from an event loop, in a task of its own: a cancelled caller cuts nothing.

        Raises:
            StoreUnavailable: the server cannot be reached or refuses; nothing was written by the last statement.
            StoreTimeout: the answer was lost; whether it took effect is not known yet.
        """
        loop = self._loop()
        task = asyncio.get_running_loop().create_task(loop.run(make))
        loop.tasks.add(task)
        task.add_done_callback(loop.tasks.discard)
        result: T = await asyncio.shield(task)
        return result

    async def run_uncut(self, make: MakeFlow[T], waited: float = 0.0) -> T:
        """As ``run_async``, for a task of the engine that is never cancelled and has waited ``waited`` seconds."""
        return await self._loop().run(make, waited)

    @property
    def patience_seconds(self) -> float:
        """How long a call may take."""
        return self.server.patience_seconds

    def _loop(self) -> _Loop:
        return self._loops.here()

    async def close_async(self) -> None:
        """Wait for what is on its way, then close what is idle. The driver may be used again."""
        loop = self._loop()
        while loop.tasks:
            await asyncio.wait(set(loop.tasks))
        await loop.close_idle()
        await self._units.close()
        self._sync.close()


class _Taken:
    """One connection, and what the server said beside its answers."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.notices = Notices()
        connection.add_log_listener(self.notices.hear)


class _Loop:
    """The connections of one event loop."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.tasks: set[asyncio.Task[Any]] = set()
        self._connections: AsyncLifo[_Taken] = AsyncLifo(self._open, server.connections_max)

    async def run(self, make: MakeFlow[T], waited: float = 0.0) -> T:
        conflicts, said = 0, False
        deadline = Deadline(self._server.patience_seconds, waited)
        while True:
            try:
                taken, was_idle = await self._connections.take(deadline)
            except StoreUnavailable as error:
                if said:
                    raise still_unknown(error) from error
                raise
            try:
                async with asyncio.timeout(deadline.for_answer()):
                    result = await _perform(taken.connection, make(), self._server)
                taken.notices.check()
            except BaseException as error:
                if _is_sound(taken, error):
                    self._connections.give(taken)
                else:
                    taken.connection.terminate()
                    self._connections.forget()
                    await self.close_idle()
                if was_idle and is_lost(error):
                    said = True
                    continue  # it died while idle: every verb names its nonce, so it may be repeated
                conflicts += 1
                if is_conflict(error) and conflicts <= CONFLICTS_MAX:
                    continue  # rolled back, for the same reason
                meaning = to_error(error)
                if meaning is error:  # Semel's own error, or not one of the store's: it must not become its own cause
                    raise
                raise or_still_unknown(meaning, said) from error
            self._connections.give(taken)
            return result

    async def _open(self, deadline: Deadline) -> _Taken:
        server = self._server
        settings = {"application_name": "semel"}
        if server.prepared:
            settings |= PLANNING | {"statement_timeout": str(round(server.patience_seconds * 1000))}
            if server.schema is not None:
                settings["search_path"] = server.schema
        try:
            connection = await open_connection(
                server.conninfo,
                timeout=deadline.before_sending(),
                statement_cache_size=100 if server.prepared else 0,
                server_settings=settings if server.prepared else None,
            )
        except asyncpg.PostgresError as error:
            raise cannot_connect(str(error), error.sqlstate) from error
        except (OSError, TimeoutError, *BROKEN) as error:
            raise cannot_connect(str(error) or type(error).__name__) from error
        return _Taken(connection)

    async def close_idle(self) -> None:
        for taken in self._connections.forget_idle():
            with suppress(Exception):
                await taken.connection.close(timeout=1)

    def drop_idle(self) -> None:
        """As ``close_idle``, where the loop is over: nothing can be awaited."""
        for taken in self._connections.forget_idle():
            drop(taken.connection)


async def open_connection(conninfo: str, **options: Any) -> Any:
    """As ``asyncpg.connect``, in a separate task, which a cancelled caller does not interrupt.

    asyncpg makes a protocol before it waits for the socket. A cancellation between the two closes the socket, and the
    protocol's own future gets an error that nobody reads: asyncio prints it.
    """
    task = asyncio.ensure_future(asyncpg.connect(conninfo, **options))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_drop_unwanted)
        raise


def _drop_unwanted(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()


def drop(connection: Any) -> None:
    """Close a connection whose loop is over."""
    transport = connection._transport
    with suppress(RuntimeError):  # it would tell its loop, which is closed
        connection.terminate()
    cut(transport)


def is_lost(error: BaseException) -> bool:
    lost = (ConnectionError, asyncpg.ConnectionDoesNotExistError, *BROKEN)
    return isinstance(error, lost) and not isinstance(error, asyncpg.DataError)


def _is_sound(taken: _Taken, error: BaseException) -> bool:
    """Whether the connection may be used again after this error."""
    if taken.notices.unreplicated or taken.connection.is_closed() or is_lost(error):
        return False
    return isinstance(error, _SAID)


def to_error(error: BaseException) -> BaseException:
    match error:
        case asyncpg.PostgresError():
            return store_error(error.sqlstate, str(error))
        case TimeoutError():
            return StoreTimeout("PostgreSQL did not answer in time: not known yet")
        case asyncpg.DataError():
            return StatementRefused(f"PostgreSQL cannot take these values: {error}")
        case ConnectionError() | asyncpg.InterfaceError() | asyncpg.InternalClientError():
            return store_error(None, str(error))
        case _:
            return error


async def _perform(connection: Any, flow: Flow[T], server: PostgresServer) -> T:
    together = False
    try:
        needed = next(flow)
        while True:
            if type(needed) is Query:
                values = server.values(needed.statement, needed.params)
                rows = await connection.fetch(needed.statement.numbered, *values)
                needed = flow.send([tuple(row) for row in rows])
            elif type(needed) is Together:
                if not together:
                    await connection.execute("BEGIN")
                together = True
                needed = flow.send(None)
            else:
                assert isinstance(needed, Script)
                for text in needed.statements:
                    await connection.execute(text)
                needed = flow.send(None)
    except StopIteration as stop:
        if together:
            await connection.execute("COMMIT")
        result: T = stop.value
        return result
    except _SAID:  # after anything else the connection is ended, and the transaction with it
        if together and not connection.is_closed():
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                await connection.execute("ROLLBACK")
        raise
