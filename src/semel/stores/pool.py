"""A few open connections, the warmest first. A call that finds none waits its turn, until its deadline.

Small on purpose: the engine sends its calls in batches, so that two or three connections carry everything.
A connection that failed is closed, and so are the idle ones beside it: the same outage has probably ended them.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from semel.errors import StoreUnavailable
from semel.stores.deadline import Deadline
from semel.stores.loops import Loops
from semel.stores.process import begin_in_children

C = TypeVar("C")

_FULL = "all {count} connections to the store are busy; retry with the same key, or raise the URL's connections_max"


class Closes(Protocol):
    """A pool of units' connections, closed with the driver's."""

    def close(self) -> None: ...


class ClosesAsync(Protocol):
    """As :class:`Closes`, on an event loop."""

    async def close(self) -> None: ...


class AsyncConnectionPool(Generic[C]):
    """Connections of one event loop."""

    def __init__(self, open: Callable[[Deadline], Awaitable[C]], most: int) -> None:
        self._open = open
        self._most = most
        self.count = 0  # open ones, idle or taken
        self.idle: list[C] = []
        self._waiting: deque[asyncio.Future[bool]] = deque()

    async def take(self, deadline: Deadline) -> tuple[C, bool]:
        """Take a connection; also return whether it was idle before.

        Raises:
            StoreUnavailable: none became free in time, or none could be opened.
        """
        while not self.idle and self.count >= self._most:
            loop = asyncio.get_running_loop()
            turn: asyncio.Future[bool] = loop.create_future()
            self._waiting.append(turn)
            timer = loop.call_later(deadline.before_sending(), _end_wait, turn)
            try:
                is_free = await turn
            except BaseException:
                if turn.done() and not turn.cancelled() and turn.result():
                    self._next()  # woken and cancelled at once: wake the next caller
                else:
                    self._leave(turn)
                raise
            finally:
                timer.cancel()
            if not is_free:
                self._leave(turn)
                raise StoreUnavailable(_FULL.format(count=self._most))
        if self.idle:
            return self.idle.pop(), True
        self.count += 1
        try:
            return await self._open(deadline), False
        except BaseException:
            self.forget()
            raise

    def give(self, connection: C) -> None:
        """Return a connection that may be used again."""
        self.idle.append(connection)
        self._next()

    def forget(self) -> None:
        """Count one connection less: a caller that took it has closed it."""
        self.count -= 1
        self._next()

    def forget_idle(self) -> list[C]:
        """Remove the idle connections, and return them to be closed."""
        idle, self.idle = self.idle, []
        self.count -= len(idle)
        return idle

    def _leave(self, turn: asyncio.Future[bool]) -> None:
        if turn in self._waiting:  # else `_next` has removed it
            self._waiting.remove(turn)

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(True)
                return


def _end_wait(turn: asyncio.Future[bool]) -> None:
    if not turn.done():
        turn.set_result(False)


class ConnectionPool(Generic[C]):
    """Connections of one process's threads."""

    def __init__(self, open: Callable[[Deadline], C], most: int) -> None:
        self._open = open
        self._most = most
        self.count = 0
        self.idle: list[C] = []
        self._changed = threading.Condition()

    def take(self, deadline: Deadline) -> tuple[C, bool]:
        """As :meth:`AsyncConnectionPool.take`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.idle or self.count < self._most, deadline.before_sending()):
                raise StoreUnavailable(_FULL.format(count=self._most))
            if self.idle:
                return self.idle.pop(), True
            self.count += 1
        try:
            return self._open(deadline), False
        except BaseException:
            self.forget()
            raise

    def give(self, connection: C) -> None:
        """Return a connection that may be used again."""
        with self._changed:
            self.idle.append(connection)
            self._changed.notify()

    def forget(self) -> None:
        """Count one connection less: a caller that took it has closed it."""
        with self._changed:
            self.count -= 1
            self._changed.notify()

    def forget_idle(self) -> list[C]:
        """Remove the idle connections, and return them to be closed."""
        with self._changed:
            idle, self.idle = self.idle, []
            self.count -= len(idle)
            self._changed.notify_all()
        return idle


class HasConnectionsMax(Protocol):
    """A server, as its URL describes it."""

    @property
    def connections_max(self) -> int: ...


S = TypeVar("S", bound=HasConnectionsMax)


class AsyncUnitPool(Generic[S, C]):
    """The connections of units, on each event loop that they are used on."""

    _open: Callable[[Deadline], Coroutine[Any, Any, C]]
    _drop: Callable[[AsyncConnectionPool[C]], None]  # drops the idle connections of a closed loop

    def __init__(self, server: S) -> None:
        self.server = server
        self._inherited: list[object] = []  # a parent's connections: never used here, never closed
        self.begin_process()
        begin_in_children(self)

    def begin_process(self) -> None:
        """Start with no connections, also in a forked child."""
        self._inherited.append(getattr(self, "_loops", None))
        self._loops: Loops[AsyncConnectionPool[C]]
        self._loops = Loops(lambda: AsyncConnectionPool(self._open, self.server.connections_max), self._drop)

    @property
    def lifo(self) -> AsyncConnectionPool[C]:
        """The connections of this process and the running loop."""
        return self._loops.here()
