"""ATOMIC units through asyncmy, on event loops (see ``unit_talk``); as ``pymysql_transaction`` does it in threads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, TypeVar

import asyncmy
from asyncmy.errors import InterfaceError, MySQLError

from semel.core.flow import Ask, MakeFlow
from semel.stores.deadline import Deadline, run_within
from semel.stores.mariadb.asyncmy_client import Taken, close, drop, open_connection, perform
from semel.stores.mariadb.errors import connection_lost
from semel.stores.mariadb.protocol import Conversation, MariadbServer
from semel.stores.mariadb.transaction import BUSY, LATE, Transaction, is_incomplete, undoes_all
from semel.stores.mariadb.unit_talk import Library, MariadbTalk
from semel.stores.pool import AsyncUnitPool
from semel.stores.talk import drive_async

T = TypeVar("T")


class AsyncmyUnitConnection(asyncmy.Connection):
    """What a handler writes on. ``begin``, ``commit`` and ``rollback`` stay inside the unit."""

    transaction: Transaction | None = None  # while it is handed out
    left_writes = False  # whether the server warned, after a rollback of its own, that some of the writes remain
    reading = 0
    _was_undone = False

    # The only place where a cancelled task can leave a statement half-way.
    async def _fill_buffer(self, need: int) -> None:
        self.reading += 1
        try:
            await super()._fill_buffer(need)  # type: ignore[misc]
        finally:
            self.reading -= 1

    async def _execute_command(self, command: int, sql: str | bytes) -> None:
        """Begin a statement; refused while another one is under way: it would read that one's answer."""
        if self.reading:
            raise InterfaceError(0, BUSY)
        if self._was_undone:  # the next statement's warnings would take the place of those
            self._was_undone = False
            self.left_writes |= is_incomplete(await self.show_warnings())  # type: ignore[no-untyped-call]
        await super()._execute_command(command, sql)  # type: ignore[misc]

    async def query(self, sql: str | bytes, unbuffered: bool = False) -> Any:
        """As asyncmy's."""
        try:
            return await super().query(sql, unbuffered)  # type: ignore[no-untyped-call]
        except MySQLError as error:
            self._was_undone = self._was_undone or undoes_all(error)
            raise

    async def next_result(self, unbuffered: bool = False) -> Any:
        """The next one of several."""
        try:
            return await super().next_result(unbuffered)  # type: ignore[no-untyped-call]
        except MySQLError as error:
            self._was_undone = self._was_undone or undoes_all(error)
            raise

    async def begin(self) -> None:
        """Does nothing while the unit is open: it has begun."""
        if self.transaction is None:
            await super().begin()

    async def commit(self) -> None:
        """Keep what was written so far for Semel's COMMIT, whatever is rolled back later."""
        if self.transaction is None:
            await super().commit()
        else:
            await self.query(self.transaction.keep())

    async def rollback(self) -> None:
        """Undo what the handler wrote since its last ``commit``; the record stays claimed."""
        if self.transaction is None:
            await super().rollback()
        else:
            await self.query(self.transaction.undo())


# Where asyncmy keeps a session's state beside its attributes.
_STATE: Final = (
    *("_loop", "_transport", "_read_timeout", "_affected_rows", "_query_callback", "_cursor_cls", "_last_usage"),
    *("_proto", "_encoding", "_stmt_cache", "_stmt_cache_size", "_next_seq_id", "server_status", "_echo"),
    *("_connected", "_deprecate_eof"),
)
_state_of: Final = attrgetter(*_STATE)


def successor(connection: Any) -> Any:
    """The same session under another object; the one that a handler may have kept, also in cursors, is closed."""
    fresh: Any = AsyncmyUnitConnection.__new__(AsyncmyUnitConnection)
    fresh.__dict__.update(connection.__dict__)
    deque(map(setattr, repeat(fresh), _STATE, _state_of(connection)), 0)  # with no step of Python for each
    fresh.left_writes = fresh._was_undone = False
    connection._connected = False
    connection._transport = connection._proto = None
    connection._close_reason = LATE
    return fresh


class AsyncmyUnit(MariadbTalk):
    """One transaction of an event loop's. Made by :class:`AsyncmyUnitPool`."""

    _library = Library(
        (MySQLError, TimeoutError), InterfaceError, attrgetter("connected"), attrgetter("reading"), successor, close
    )

    def run_async(self, make: MakeFlow[T]) -> Coroutine[Any, Any, T]:
        """Run a flow inside the transaction. Raises as ``PymysqlUnit.run``."""
        return drive_async(self._running(make))

    def settle_async(self, needed: Ask[Any]) -> Coroutine[Any, Any, bool]:
        """Settle and COMMIT in one round trip. As ``PymysqlUnit.settle``."""
        return drive_async(self._settling(needed))

    def rollback_async(self) -> Coroutine[Any, Any, None]:
        """End it; nothing of it remains. Safe to call at any time, also twice."""
        return drive_async(self._rolling_back())

    async def _perform(self, conversation: Conversation[T]) -> T:
        try:
            deadline = self._deadline or self._call()
            return await run_within(perform(self.connection, conversation), deadline.for_answer())
        except TimeoutError as error:
            self.connection.close()
            raise connection_lost() from error

    async def _undo(self) -> None:
        connection = self.connection
        async with asyncio.timeout(self._call().for_answer()):
            await connection.query("ROLLBACK")
            self.left_writes = connection.left_writes
            if connection._result.warning_count:
                self.left_writes |= is_incomplete(await connection.show_warnings())


class AsyncmyUnitPool(AsyncUnitPool[MariadbServer, Taken]):
    """The connections of units, on each event loop that they are used on."""

    _drop = staticmethod(drop)

    async def begin(self) -> AsyncmyUnit:
        """A unit on a connection of its own.

        Raises StoreUnavailable: none became free in time, or none could be opened.
        """
        deadline = Deadline(self.server.patience_seconds)
        taken, was_idle = await self.lifo.take(deadline)
        return AsyncmyUnit(self, taken, deadline, was_idle=was_idle)

    async def instead_of(self, taken: Taken, deadline: Deadline) -> Taken:
        """A new connection for one that was lost, and probably all idle ones with it."""
        await close(taken[0])
        await self.close()
        return await self._open(deadline)

    async def drop(self, connection: AsyncmyUnitConnection) -> None:
        """Close a connection that must not be used again."""
        await close(connection)
        self.lifo.forget()

    async def _open(self, deadline: Deadline) -> Taken:
        return await open_connection(AsyncmyUnitConnection, self.server, deadline, own=False)

    async def close(self) -> None:
        """Close what is idle on this loop."""
        for connection, _ in self.lifo.forget_idle():
            await close(connection)
