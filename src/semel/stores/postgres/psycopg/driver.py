"""The psycopg 3 driver of the PostgreSQL store: the same flows from threads and from event loops.

It has its own connections, in autocommit: a verb is one statement and one round trip, with no BEGIN, COMMIT or reset
around it. The server keeps the plans of ``planned_once`` statements, whose planning would take half of their time. All
others are unnamed and planned anew each time; otherwise a plan made while the table was empty would be kept. No plan
may scan the table. Behind PgBouncer (``?prepared=no``) the driver relies on no session state and keeps no plan.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncRawCursor, RawCursor
from psycopg.conninfo import conninfo_to_dict

from semel.core.flow import Ask, Flow, MakeFlow
from semel.errors import SemelError, StatementRefused, StoreUnavailable
from semel.stores.clock import Clock
from semel.stores.deadline import Deadline
from semel.stores.failures import or_still_unknown, still_unknown
from semel.stores.loops import Loops
from semel.stores.pool import AsyncConnectionPool, Closes, ClosesAsync, ConnectionPool
from semel.stores.postgres.errors import cannot_connect, is_conflict, store_error
from semel.stores.postgres.psycopg.arrays import with_arrays
from semel.stores.postgres.psycopg.pipeline import execute, execute_async, is_outdated
from semel.stores.postgres.psycopg.timeout import Overdue, PatientAsyncConnection, PatientConnection, opening
from semel.stores.process import begin_in_children
from semel.stores.sql.statements import Params, Query, Row, Script, Statement, Together

T = TypeVar("T")

# The server prices planning by ``cpu_operator_cost``: at forty times the default it always keeps a plan, from a
# connection's sixth use on. ``force_generic_plan`` would hide their values from the statements that are not kept.
PLANNING: Final = " ".join(
    f"-c {setting}"
    for setting in (
        *("cpu_operator_cost=0.1", "enable_seqscan=off", "enable_hashjoin=off", "enable_mergejoin=off"),
        *("plan_cache_mode=auto", "jit=off", "default_transaction_isolation=read\\ committed"),
    )
)

CONFLICTS_MAX: Final = 3  # retries of a statement that lost to another transaction


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """The address and options of a PostgreSQL store's server.

    Parameters: ``conninfo`` a libpq connection string or ``postgresql://`` URL, never shown; ``prepared`` False behind
    a pooler in transaction mode; ``connections_max`` per process (and per event loop); ``patience_seconds`` how
    long a call may take, with its waits for its turn and for a connection; ``clock`` in microseconds replaces the
    server's own (tests); ``schema`` where Semel's tables are, if not on the user's search_path.
    """

    conninfo: str = field(repr=False)
    prepared: bool = True
    connections_max: int = 8
    patience_seconds: float = 5.0
    schema: str | None = None
    clock: Clock | None = None

    def options(self) -> dict[str, Any]:
        """Arguments for psycopg's ``connect``."""
        seconds = max(2, round(self.patience_seconds))
        options: dict[str, Any] = {"autocommit": True, "connect_timeout": seconds, "application_name": "semel"}
        options["client_encoding"] = "utf8"  # in which arrays are written down, whatever the role has
        if not self.prepared:
            return {**options, "prepare_threshold": None}
        settings = [self._theirs(), PLANNING, f"-c statement_timeout={round(self.patience_seconds * 1000)}"]
        if self.schema is not None:
            settings.append(f"-c search_path={self.schema}")
        return {**options, "options": " ".join(filter(None, settings)), "prepare_threshold": None}

    def _theirs(self) -> str:
        """Return the settings of the connection string that an argument would replace."""
        return str(conninfo_to_dict(self.conninfo).get("options") or "")

    def plain_options(self) -> dict[str, Any]:
        """Arguments for the connections that handlers write on: the user's settings, and none of Semel's."""
        options = self.options()
        options.pop("options", None)
        if self.schema is not None:
            options["options"] = f"{self._theirs()} -c search_path={self.schema},public".lstrip()
        return {**options, "autocommit": False, "prepare_threshold": 5 if self.prepared else None}

    def values(self, statement: Statement, params: Params | Row) -> list[Any]:
        """Return the values of a statement's ``$1``, ``$2``…; the driver adds the clock."""
        assert not isinstance(params, tuple)
        given = {**params, "now": None if self.clock is None else self.clock()}
        return list(map(given.__getitem__, statement.distinct))


class PsycopgDriver:
    """Runs the PostgreSQL store's flows. Connects when first used; safe after a fork, and on any event loop."""

    coalesces = True

    def __init__(
        self, server: PostgresServer, units: Closes | None = None, async_units: ClosesAsync | None = None
    ) -> None:
        self.server = server
        self._units = units
        self._async_units = async_units
        self._inherited: list[object] = []  # a parent's connections: never used here, never closed
        self._begin()
        begin_in_children(self)

    def _begin(self) -> None:
        self._threads: ConnectionPool[PatientConnection] = ConnectionPool(self._open, self.server.connections_max)
        self._loops = Loops(lambda: _Loop(self.server), _Loop.drop_idle)

    def begin_process(self) -> None:
        """Start without connections in a forked child."""
        self._inherited += [self._threads, self._loops]
        self._begin()

    @property
    def patience_seconds(self) -> float:
        """How long a call may take."""
        return self.server.patience_seconds

    # --- threads ----------------------------------------------------------------------------

    def run(self, make: MakeFlow[T]) -> T:
        """Run a flow from an ordinary thread.

        Raises:
            StoreUnavailable: the server cannot be reached or refuses; nothing was written by the last statement.
            StoreTimeout: the answer was lost; whether it took effect is not known yet.
        """
        conflicts, said = 0, False
        deadline = Deadline(self.server.patience_seconds)
        while True:
            try:
                connection, was_idle = self._threads.take(deadline)
            except StoreUnavailable as error:
                if said:
                    raise still_unknown(error) from error
                raise
            try:
                connection.deadline = deadline
                result = _perform(connection, make(), self.server)
                connection.notices.check()
            except BaseException as error:
                if _is_sound(connection, error):
                    self._threads.give(connection)
                else:
                    connection.close()
                    self._threads.forget()
                    self._close_idle()
                if was_idle and is_stale(error):
                    said = True
                    continue  # it died while idle: every verb names its nonce and may be repeated
                conflicts += 1
                if (is_conflict(error) or is_outdated(error)) and conflicts <= CONFLICTS_MAX:
                    continue  # rolled back, for the same reason
                if isinstance(error, psycopg.Error):
                    raise or_still_unknown(to_error(error), said) from error
                raise
            self._threads.give(connection)
            return result

    def _open(self, deadline: Deadline) -> PatientConnection:
        server = self.server
        try:
            with opening(server.conninfo, deadline):
                return PatientConnection.connect(server.conninfo, cursor_factory=RawCursor, **server.options())
        except psycopg.Error as error:
            raise cannot_connect(str(error), error.sqlstate) from error

    def _close_idle(self) -> None:
        for connection in self._threads.forget_idle():
            connection.close()

    def close(self) -> None:
        """Close idle connections. The driver may be used again."""
        self._close_idle()
        if self._units is not None:
            self._units.close()

    # --- event loops ------------------------------------------------------------------------

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Run a flow from an event loop, in a separate task that survives a cancelled caller. Raises as ``run``."""
        loop = self._loop()
        task = loop.loop.create_task(loop.run(make))
        loop.tasks.add(task)
        task.add_done_callback(loop.tasks.discard)
        result: T = await asyncio.shield(task)
        return result

    async def run_uncut(self, make: MakeFlow[T], waited: float = 0.0) -> T:
        """As ``run_async``, for a task of the engine that is never cancelled and has waited ``waited`` seconds."""
        return await self._loop().run(make, waited)

    def _loop(self) -> _Loop:
        return self._loops.here()

    async def close_async(self) -> None:
        """Wait for running calls, then close idle connections. The driver may be used again."""
        loop = self._loop()
        while loop.tasks:
            await asyncio.wait(set(loop.tasks))
        await loop.close_idle()
        if self._async_units is not None:
            await self._async_units.close()
        self.close()


class _Loop:
    """The connections of one event loop."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.tasks: set[asyncio.Task[Any]] = set()
        self._connections: AsyncConnectionPool[PatientAsyncConnection] = AsyncConnectionPool(
            self._open, server.connections_max
        )

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def run(self, make: MakeFlow[T], waited: float = 0.0) -> T:
        conflicts, said = 0, False
        deadline = Deadline(self._server.patience_seconds, waited)
        while True:
            try:
                connection, was_idle = await self._connections.take(deadline)
            except StoreUnavailable as error:
                if said:
                    raise still_unknown(error) from error
                raise
            try:
                connection.deadline = deadline
                result = await _perform_async(connection, make(), self._server)
                connection.notices.check()
            except BaseException as error:
                if _is_sound(connection, error):
                    self._connections.give(connection)
                else:
                    await connection.close()
                    self._connections.forget()
                    await self.close_idle()
                if was_idle and is_stale(error):
                    said = True
                    continue  # as in threads
                conflicts += 1
                if (is_conflict(error) or is_outdated(error)) and conflicts <= CONFLICTS_MAX:
                    continue
                if isinstance(error, psycopg.Error):
                    raise or_still_unknown(to_error(error), said) from error
                raise
            self._connections.give(connection)
            return result

    async def _open(self, deadline: Deadline) -> PatientAsyncConnection:
        server = self._server
        try:
            with opening(server.conninfo, deadline):
                return await PatientAsyncConnection.connect(
                    server.conninfo, cursor_factory=AsyncRawCursor, **server.options()
                )
        except psycopg.Error as error:
            raise cannot_connect(str(error), error.sqlstate) from error

    async def close_idle(self) -> None:
        for connection in self._connections.forget_idle():
            await connection.close()

    def drop_idle(self) -> None:
        """Drop idle connections of a closed loop, on which nothing can be awaited."""
        for connection in self._connections.forget_idle():
            connection.finish()


def is_lost(error: BaseException) -> bool:
    """Whether the connection ended during the statement, without an error from the server."""
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) and error.sqlstate is None


def is_stale(error: BaseException) -> bool:
    """Whether the connection had died before, so that a new one may work; False where the server hangs."""
    return is_lost(error) and not isinstance(error, Overdue)


def _is_sound(connection: PatientConnection | PatientAsyncConnection, error: BaseException) -> bool:
    """Whether the connection may be used again after this error."""
    if connection.closed or is_lost(error) or connection.notices.unreplicated:
        return False
    return isinstance(error, (psycopg.Error, SemelError))


def to_error(error: psycopg.Error) -> SemelError:
    if error.sqlstate is None and not is_lost(error):
        return StatementRefused(f"PostgreSQL cannot take these values: {error}")  # refused before they were sent
    return store_error(error.sqlstate, str(error))


def _perform(connection: PatientConnection, flow: Flow[T], server: PostgresServer) -> T:
    together = False
    try:
        needed = next(flow)
        while True:
            if type(needed) is Together:
                if not together:
                    connection.execute(b"BEGIN")
                together = True
                needed = flow.send(None)
            elif type(needed) is Query:
                values = with_arrays(needed.statement, server.values(needed.statement, needed.params))
                once, text = server.prepared and needed.statement.planned_once, needed.statement.numbered.encode()
                rows = execute(connection, (text, values), prepared=once)
                connection.note_answer()
                needed = flow.send(rows)
            else:
                for text in _script(needed):
                    connection.deadline = Deadline(server.patience_seconds)  # each statement of a migration has its own
                    connection.execute(text)
                needed = flow.send(None)
    except StopIteration as stop:
        if together:
            connection.execute(b"COMMIT")
        result: T = stop.value
        return result
    except BaseException:
        if together and not connection.closed:
            with suppress(psycopg.Error):
                connection.execute(b"ROLLBACK")
        raise


async def _perform_async(connection: PatientAsyncConnection, flow: Flow[T], server: PostgresServer) -> T:
    together = False
    try:
        needed = next(flow)
        while True:
            if type(needed) is Together:
                if not together:
                    await connection.execute(b"BEGIN")
                together = True
                needed = flow.send(None)
            elif type(needed) is Query:
                values = with_arrays(needed.statement, server.values(needed.statement, needed.params))
                once, text = server.prepared and needed.statement.planned_once, needed.statement.numbered.encode()
                rows = await execute_async(connection, (text, values), prepared=once)
                connection.note_answer()
                needed = flow.send(rows)
            else:
                for text in _script(needed):
                    connection.deadline = Deadline(server.patience_seconds)  # as in threads
                    await connection.execute(text)
                needed = flow.send(None)
    except StopIteration as stop:
        if together:
            await connection.execute(b"COMMIT")
        result: T = stop.value
        return result
    except BaseException:
        if together and not connection.closed:
            with suppress(psycopg.Error):
                await connection.execute(b"ROLLBACK")
        raise


def _script(needed: Ask[Any]) -> list[bytes]:
    assert isinstance(needed, Script)
    return [text.encode() for text in needed.statements]
