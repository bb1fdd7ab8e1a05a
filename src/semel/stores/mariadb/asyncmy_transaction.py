"""ATOMIC units through asyncmy, on event loops (see ``transaction``); ``pymysql_transaction`` has those of threads."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from itertools import repeat
from operator import attrgetter
from typing import Any, Final, TypeVar

import asyncmy
from asyncmy.errors import InterfaceError, MySQLError

from semel.core.flow import Ask, MakeFlow
from semel.errors import SemelError
from semel.stores.deadline import Deadline, run_within
from semel.stores.loops import socket_number
from semel.stores.mariadb.asyncmy_client import Taken, close, drop, is_sound, open_connection, perform
from semel.stores.mariadb.errors import Lost, MariadbRefused, connection_lost, store_error
from semel.stores.mariadb.protocol import Conversation, MariadbServer
from semel.stores.mariadb.transaction import BUSY, LATE, Transaction, is_incomplete, undoes_all, undone, witness_end
from semel.stores.pool import AsyncUnitPool
from semel.stores.process import part_in_children

T = TypeVar("T")


class AsyncmyUnitConnection(asyncmy.Connection):
    """A handler's connection. ``begin``, ``commit`` and ``rollback`` stay inside the unit."""

    transaction: Transaction | None = None  # while it is handed out
    left_writes = False  # whether the server warned that some writes remain after its own rollback
    reading = 0
    was_cut = False  # during a statement, which the server may still be running
    was_lost = False  # during a statement, by the server or the network
    _was_undone = False

    # The only place where a cancelled task can leave a statement half-way.
    async def _fill_buffer(self, need: int) -> None:
        self.reading += 1
        try:
            await super()._fill_buffer(need)  # type: ignore[misc]
        except asyncio.CancelledError:
            self.was_cut = True
            raise
        except MySQLError:
            self.was_lost = True
            raise
        finally:
            self.reading -= 1

    async def _execute_command(self, command: int, sql: str | bytes) -> None:
        """Send a statement; refuse one while another is under way, because it would read the other's answer."""
        if self.reading:
            raise InterfaceError(0, BUSY)
        if self._was_undone:  # the next statement's warnings would replace those
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
        """Read the next result of several."""
        try:
            return await super().next_result(unbuffered)  # type: ignore[no-untyped-call]
        except MySQLError as error:
            self._was_undone = self._was_undone or undoes_all(error)
            raise

    async def begin(self) -> None:
        """Do nothing inside a unit, whose transaction has begun already."""
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
    """Move the session to another object, and close the one that a handler or its cursors may have kept."""
    fresh: Any = AsyncmyUnitConnection.__new__(AsyncmyUnitConnection)
    fresh.__dict__.update(connection.__dict__)
    deque(map(setattr, repeat(fresh), _STATE, _state_of(connection)), 0)  # with no step of Python for each
    fresh.left_writes = fresh.was_cut = fresh.was_lost = fresh._was_undone = False
    connection._connected = False
    connection._transport = connection._proto = None
    connection._close_reason = LATE
    return fresh


class AsyncmyUnit:
    """One transaction of an event loop's. Made by :class:`AsyncmyUnitPool`; nothing is sent before the claim."""

    def __init__(self, pool: AsyncmyUnitPool, taken: Taken, deadline: Deadline, *, was_idle: bool) -> None:
        self._pool = pool
        self._deadline: Deadline | None = deadline  # of the call that is under way; None while the handler runs
        self._taken = taken
        self._was_idle = was_idle
        self._pid = os.getpid()
        self._begun = False
        self._ended = False
        self._was_handed_out = False
        self.left_writes = False
        self.is_undecided = False
        self._transaction = self._new_transaction()

    def _new_transaction(self) -> Transaction:
        return Transaction(self._pool.server.clock, self._taken[1])

    @property
    def connection(self) -> Any:
        """Return the handler's connection.

        Raises asyncmy.errors.InterfaceError after the end: the session is another command's by then.
        """
        if self._ended:
            raise InterfaceError(0, LATE)
        return self._taken[0]

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Run a flow inside the transaction. Raises as ``PymysqlUnit.run``."""
        first, self._begun = not self._begun, True
        try:
            return await self._perform(self._transaction.run(make))
        except Lost as error:
            if not first or not self._was_idle:
                raise connection_lost(error) from error
        except MariadbRefused as error:
            await self._drop_unsound(error)
            raise store_error(error) from error
        # The connection died while it was idle. The claim names its nonce, so it may be repeated.
        self._taken = await self._pool.instead_of(self._taken, self._call())
        self._transaction = self._new_transaction()
        try:
            return await self._perform(self._transaction.run(make))
        except Lost as error:
            raise connection_lost(error) from error
        except MariadbRefused as error:
            await self._drop_unsound(error)
            raise store_error(error) from error

    async def _drop_unsound(self, error: MariadbRefused) -> None:
        if not is_sound(error):
            await close(self.connection)

    def _call(self) -> Deadline:
        return self._deadline or Deadline(self._pool.server.patience_seconds)

    async def _perform(self, conversation: Conversation[T]) -> T:
        try:
            return await run_within(perform(self.connection, conversation), self._call().for_answer())
        except TimeoutError as error:
            self.connection.close()
            raise connection_lost() from error

    def _is_over(self) -> bool:
        if self._pid != os.getpid():  # a forked handler must not use its parent's connection
            self._ended = True
        return self._ended

    def hand_out(self) -> Any:
        """Hand out the connection: from here on only Semel ends the transaction."""
        self.connection.transaction = self._transaction
        self._deadline = None
        self._was_handed_out = True
        return self.connection

    async def settle_async(self, needed: Ask[Any]) -> bool:
        """Settle and COMMIT in one round trip. As ``PymysqlUnit.settle``."""
        if self._is_over():
            return False
        if self.connection.reading:
            await self._end_unanswered(self._call())
            raise undone(has_ended=not self.is_undecided)
        self._deadline = Deadline(self._pool.server.patience_seconds)
        try:
            stands = await self._perform(self._transaction.settle(needed))
        except Lost as error:
            await self._end(sound=False)
            raise connection_lost(error) from error
        except MariadbRefused as error:
            if is_sound(error):
                await self.rollback_async()
            else:
                await self._end(sound=False)
            raise store_error(error) from error
        except BaseException:
            await self._end(sound=False)
            raise
        if stands:
            await self._end(sound=True)
        else:
            await self.rollback_async()
        return stands

    async def rollback_async(self) -> None:
        """Roll the transaction back. Safe to call at any time, also twice."""
        if self._is_over():
            return
        deadline = self._call()
        is_answered = False
        if self._begun and self.connection.connected:
            self.connection.transaction = None
            try:
                async with asyncio.timeout(deadline.for_answer()):
                    await self.connection.query("ROLLBACK")
                    self.left_writes = self.connection.left_writes
                    if self.connection._result.warning_count:
                        self.left_writes |= is_incomplete(await self.connection.show_warnings())
                is_answered = True
            except (MySQLError, TimeoutError):
                pass
        if is_answered or not self._was_handed_out:
            await self._end(sound=is_answered or not self._begun)
        else:
            await self._end_unanswered(deadline)

    async def _end_unanswered(self, deadline: Deadline) -> None:
        """End a unit whose ROLLBACK was not answered: check on another connection that it ended, and what remains."""
        connection, greeting = self._taken
        was_cut = bool(connection.was_cut or connection.reading)
        may_go_on = was_cut or connection.was_lost
        self._ended = True
        self.left_writes |= connection.left_writes
        await close(connection)
        try:
            other, met = await self._pool.open_another(deadline)
            try:
                session = connection.thread_id() if may_go_on else None
                is_there = met.server == greeting.server and connection.thread_id() == greeting.session
                asked = witness_end(session, deadline.before_sending(), is_there=is_there, stops=was_cut)
                has_ended, may_remain = await run_within(perform(other, asked), deadline.for_answer())
            finally:
                await close(other)
            self.is_undecided = not has_ended
            self.left_writes |= may_remain
        except (SemelError, Lost, MariadbRefused, TimeoutError):
            self.is_undecided = may_go_on
        finally:
            await self._pool.give(self._taken, sound=False)

    async def _end(self, *, sound: bool) -> None:
        connection, greeting = self._taken
        self._ended = True
        connection.transaction = None
        if sound and connection.connected and not connection.get_autocommit():
            await self._pool.give((successor(connection), greeting), sound=True)
        else:
            await self._pool.give(self._taken, sound=False)


class AsyncmyUnitPool(AsyncUnitPool[MariadbServer, Taken]):
    """The connections of units, on each event loop that they are used on."""

    _drop = staticmethod(drop)

    async def begin(self) -> AsyncmyUnit:
        """Begin a unit on a connection of its own.

        Raises StoreUnavailable: none became free in time, or none could be opened.
        """
        deadline = Deadline(self.server.patience_seconds)
        taken, was_idle = await self.lifo.take(deadline)
        return AsyncmyUnit(self, taken, deadline, was_idle=was_idle)

    async def instead_of(self, taken: Taken, deadline: Deadline) -> Taken:
        """Open a connection in place of one that was lost, and probably all idle ones with it."""
        await close(taken[0])
        await self.close()
        return await self._open(deadline)

    async def open_another(self, deadline: Deadline) -> Taken:
        """Open a connection in place of a closed one; the caller closes it. Raises StoreUnavailable."""
        return await self._open(deadline)

    async def give(self, taken: Taken, *, sound: bool) -> None:
        """Return the connection to the pool, or drop it if it is not sound."""
        if sound:
            self.lifo.give(taken)
        else:
            await close(taken[0])
            self.lifo.forget()

    async def _open(self, deadline: Deadline) -> Taken:
        taken = await open_connection(AsyncmyUnitConnection, self.server, deadline, own=False)
        part_in_children(taken[0]._transport, socket_number)
        return taken

    async def close(self) -> None:
        """Close the idle connections of this loop."""
        for connection, _ in self.lifo.forget_idle():
            await close(connection)
