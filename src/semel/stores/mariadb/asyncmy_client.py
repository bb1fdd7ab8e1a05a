"""asyncmy: performs the MariaDB store's conversations on event loops, as ``pymysql`` does in threads."""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeVar

import asyncmy
from asyncmy.constants import CLIENT
from asyncmy.cursors import Cursor
from asyncmy.errors import MySQLError

from semel.core.flow import MakeFlow
from semel.errors import SemelError, StoreUnavailable
from semel.stores.deadline import Deadline
from semel.stores.failures import or_still_unknown, still_unknown
from semel.stores.loops import cut
from semel.stores.mariadb.errors import (
    Lost,
    MariadbRefused,
    cannot_connect,
    connection_lost,
    ends_connection,
    parse_refusal,
    store_error,
)
from semel.stores.mariadb.protocol import Conversation, Greeting, MariadbServer, Result, converse, greet
from semel.stores.pool import AsyncConnectionPool

T = TypeVar("T")
CONNECTION: Final = asyncmy.Connection
OWN: Final = CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS
CANCEL_AGAIN_SECONDS: Final = 0.05
Taken = tuple[Any, Greeting]


class AsyncmyLoop:
    """The connections of one event loop."""

    def __init__(self, server: MariadbServer) -> None:
        self._server = server
        self.tasks: set[asyncio.Task[Any]] = set()
        self._lifo: AsyncConnectionPool[Taken] = AsyncConnectionPool(self._open, server.connections_max)

    def start(self, make: MakeFlow[T]) -> asyncio.Task[T]:
        """Run a flow in a separate task, which a cancelled caller does not interrupt."""
        task = asyncio.get_running_loop().create_task(self.run(make))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def run(self, make: MakeFlow[T], waited: float = 0.0) -> T:
        """Run a flow that has ``waited`` for so many seconds. Raises as ``pymysql.Threads.run``."""
        said = False
        deadline = Deadline(self._server.patience_seconds, waited)
        while True:
            try:
                taken, was_idle = await self._lifo.take(deadline)
            except StoreUnavailable as error:
                if said:
                    raise still_unknown(error) from error
                raise
            connection, greeting = taken
            try:
                async with asyncio.timeout(deadline.for_answer()):
                    result = await perform(connection, converse(make, self._server.clock, greeting.packet_max))
            except BaseException as error:
                if is_sound(error) and connection.connected:
                    self._lifo.give(taken)
                else:
                    await close(connection)
                    self._lifo.forget()
                    await self.close_idle()
                if isinstance(error, TimeoutError):
                    raise connection_lost() from error
                if isinstance(error, Lost):
                    if was_idle:
                        said = True
                        continue  # as in ``Threads.run``
                    raise connection_lost(error) from error
                if isinstance(error, MariadbRefused):
                    raise or_still_unknown(store_error(error), said) from error
                raise
            self._lifo.give(taken)
            return result

    async def _open(self, deadline: Deadline) -> Taken:
        return await open_connection(asyncmy.Connection, self._server, deadline, client_flag=OWN)

    async def close_idle(self) -> None:
        """Close idle connections."""
        for connection, _ in self._lifo.forget_idle():
            await close(connection)

    def drop_idle(self) -> None:
        """Drop idle connections of a closed loop, on which nothing can be awaited."""
        drop(self._lifo)

    async def close(self) -> None:
        """Wait for running calls, then close idle connections."""
        while self.tasks:
            await asyncio.wait(set(self.tasks))
        await self.close_idle()


async def open_connection(
    connection_class: Any, server: MariadbServer, deadline: Deadline, *, own: bool = True, **options: Any
) -> Taken:
    """Open and greet a connection; ``own``: set it up as one of Semel's."""
    connection = connection_class(**server.options(), autocommit=own, **options)
    try:
        await _connect(connection, deadline.before_sending())
        async with asyncio.timeout(deadline.before_sending()):
            return connection, await perform(connection, greet(server if own else None))
    except BaseException as error:
        await close(connection)
        if isinstance(error, TimeoutError):
            raise StoreUnavailable("MariaDB cannot be reached: no answer in time (check the URL's host)") from error
        if isinstance(error, (MySQLError, MariadbRefused)):
            raise cannot_connect(error) from error
        if isinstance(error, Lost):
            raise StoreUnavailable("MariaDB ended the connection while it was being opened") from error
        raise


async def _connect(connection: Any, seconds: float) -> None:
    """Connect in a task, and on a time-out cancel it again and again until it ends.

    asyncmy connects inside ``asyncio.wait_for``, which in Python 3.11 loses a cancellation that arrives just as the
    socket opens; then nothing would end the wait for the server's greeting.

    Raises TimeoutError.
    """
    task = asyncio.ensure_future(connection.connect())
    try:
        await asyncio.wait((task,), timeout=seconds)
        if not task.done():
            raise TimeoutError
    except BaseException:
        _end(task, connection)
        raise
    task.result()


def _end(task: asyncio.Future[Any], connection: Any) -> None:
    if task.done():
        _ = task.cancelled() or task.exception()  # marks the error as seen
        connection.close()  # it may have become one after all
    else:
        task.cancel()
        task.get_loop().call_later(CANCEL_AGAIN_SECONDS, _end, task, connection)


async def close(connection: Any) -> None:
    """Close a connection in any state."""
    connection.close()
    await asyncio.sleep(0)  # the transport closes in the loop's next turn


def drop(lifo: AsyncConnectionPool[Taken]) -> None:
    """Close idle connections of a closed loop."""
    for connection, _ in lifo.forget_idle():
        transport, connection._transport = connection._transport, None
        if transport is not None:
            cut(transport)


def is_sound(error: BaseException) -> bool:
    """Whether the connection may be used again after this error."""
    return isinstance(error, SemelError) or (isinstance(error, MariadbRefused) and not ends_connection(error))


async def perform(connection: Any, conversation: Conversation[T]) -> T:
    """Carry a conversation to its end.

    Raises Refused and Lost, and what the conversation raises.
    """
    try:
        text = next(conversation)
        while True:
            try:
                results = await say(connection, text)
            except MySQLError as error:
                refusal = parse_refusal(error)
                if refusal is None:
                    raise Lost(*error.args) from error
                text = conversation.throw(refusal)
            else:
                text = conversation.send(results)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def say(connection: Any, text: str) -> list[Result]:
    """Send one text and read the result of each of its statements."""
    cursor = connection.cursor(Cursor)
    await cursor.execute(text)
    results: list[Result] = []
    while True:
        results.append(cursor.rowcount if cursor.description is None else list(await cursor.fetchall()))
        if not await cursor.nextset():
            return results
