"""The asyncpg driver of the PostgreSQL store: flows on event loops. Threads (and the CLI) go through psycopg.

It keeps a few connections of its own: asyncpg's pool resets each one on release, at a round trip per call. Each
connection prepares a statement once, and the server keeps the plans of those that are ``planned_once``; any other is
prepared again before the server would keep its plan. Nothing is prepared where the URL says ``prepared=no``.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final, TypeVar

import asyncpg

from semel.core.flow import Flow, MakeFlow
from semel.errors import SemelError, StatementRefused, StoreTimeout, StoreUnavailable
from semel.stores.deadline import Deadline, run_within
from semel.stores.failures import or_still_unknown, still_unknown
from semel.stores.loops import Loops, cut
from semel.stores.pool import AsyncConnectionPool, ClosesAsync
from semel.stores.postgres.errors import cannot_connect, is_conflict, store_error
from semel.stores.postgres.notices import Notices
from semel.stores.postgres.psycopg.driver import CONFLICTS_MAX, PostgresServer, PsycopgDriver
from semel.stores.postgres.psycopg.pipeline import is_outdated
from semel.stores.process import begin_in_children
from semel.stores.sql.statements import Query, Script, Statement, Together

T = TypeVar("T")

_SAID: Final = (asyncpg.PostgresError, asyncpg.DataError, SemelError)  # the connection is fine: it refused
# The second: the server's farewell was read, but not yet the end of the stream. Nothing was sent then.
BROKEN: Final = (asyncpg.InterfaceError, asyncpg.InternalClientError)
# As with psycopg: planning is priced so high that the server keeps a plan from the sixth use on.
PLANNING: Final = {
    "cpu_operator_cost": "0.1",
    "plan_cache_mode": "auto",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "default_transaction_isolation": "read committed",
}
PLANNED_ANEW: Final = 5  # first uses of a prepared statement, which the server plans for their values
_PREPARED_MAX: Final = 100  # of one connection


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
        """Start without connections in a forked child."""
        self._inherited.append(self._loops)
        self._begin()

    def run(self, make: MakeFlow[T]) -> T:
        """Run a flow from an ordinary thread, by psycopg."""
        return self._sync.run(make)

    def close(self) -> None:
        """Close idle connections."""
        self._sync.close()

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Run a flow from an event loop, in a separate task that survives a cancelled caller.

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
        """Wait for running calls, then close idle connections. The driver may be used again."""
        loop = self._loop()
        while loop.tasks:
            await asyncio.wait(set(loop.tasks))
        await loop.close_idle()
        await self._units.close()
        self._sync.close()


class _Taken:
    """One connection, its prepared statements, and the server's notices."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.notices = Notices()
        self.kept: dict[str, Any] = {}  # statements that are planned once, by text
        self._anew: dict[str, tuple[Any, int]] = {}  # all other statements, with their uses
        connection.add_log_listener(self.notices.hear)

    async def fetch(self, statement: Statement, values: list[Any]) -> list[Any]:
        """Fetch the rows of a statement, and prepare it first where needed."""
        text = statement.numbered
        if statement.planned_once:
            prepared = self.kept.get(text)
            if prepared is None:
                prepared = self.kept[text] = await self.connection.prepare(text)
        else:
            prepared, uses = self._anew.pop(text, (None, 0))
            if prepared is None or uses == PLANNED_ANEW:
                prepared, uses = await self.connection.prepare(text), 0
            self._anew[text] = prepared, uses + 1
            if len(self._anew) > _PREPARED_MAX:
                del self._anew[next(iter(self._anew))]
        rows: list[Any] = await prepared.fetch(*values)
        return rows

    def forget_prepared(self) -> None:
        """Forget all prepared statements, because their result types have changed."""
        self.kept.clear()
        self._anew.clear()


class _Loop:
    """The connections of one event loop."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.tasks: set[asyncio.Task[Any]] = set()
        self._connections: AsyncConnectionPool[_Taken] = AsyncConnectionPool(self._open, server.connections_max)

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
                result = await run_within(_perform(taken, make(), self._server), deadline.for_answer())
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
                    continue  # it died while idle: every verb names its nonce and may be repeated
                conflicts += 1
                outdated = is_outdated(error)
                if outdated:
                    taken.forget_prepared()
                if (outdated or is_conflict(error)) and conflicts <= CONFLICTS_MAX:
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
                statement_cache_size=100 if server.prepared else 0,  # 0 would prepare without names
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
        """Drop idle connections of a closed loop, on which nothing can be awaited."""
        for taken in self._connections.forget_idle():
            drop(taken.connection)


async def open_connection(conninfo: str, **options: Any) -> Any:
    """As ``asyncpg.connect``, in a separate task, which a cancelled caller does not interrupt.

    asyncpg makes a protocol before it waits for the socket. A cancellation between the two closes the socket, and the
    protocol's own future gets an error that no task reads: asyncio prints it.
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
    """Close a connection of a closed loop."""
    transport = connection._transport
    with suppress(RuntimeError):  # it calls its loop, which is closed
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


async def _perform(taken: _Taken, flow: Flow[T], server: PostgresServer) -> T:
    connection, together = taken.connection, False
    try:
        needed = next(flow)
        while True:
            if type(needed) is Query:
                values = server.values(needed.statement, needed.params)
                if server.prepared:
                    rows = await taken.fetch(needed.statement, values)
                else:
                    rows = await connection.fetch(needed.statement.numbered, *values)
                needed = flow.send(list(map(tuple, rows)))
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
