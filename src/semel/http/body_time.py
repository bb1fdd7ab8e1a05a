"""Limit the time for a request's body to arrive, with one timer for all bodies.

A client that sends one byte a second would otherwise hold a connection, and over WSGI a thread, for ever.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final, TypeVar

from semel.stores.process import begin_in_children

T = TypeVar("T")

_SOCKETS: Final = ("gunicorn.socket", "werkzeug.socket")  # where servers pass on their connection


def end_reading(environ: Mapping[str, Any]) -> None:
    """Cut off a request's body at its connection, if the server exposes it."""
    for name in _SOCKETS:
        if (connection := environ.get(name)) is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RD)


class BodyClock:
    """The bodies that the tasks of an event loop wait for; a task that waits longer than ``seconds`` is cancelled.

    Most bodies arrive before they are read, and set no limit: :meth:`next_of` sets one when it must wait.
    """

    __slots__ = ("_late", "_loop", "_reading", "_seconds", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._reading: dict[asyncio.Task[Any], float] = {}  # until when, the first one first
        self._late: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def next_of(self, receive: Callable[[], Awaitable[T]], until: float = 0.0) -> tuple[T, float]:
        """Return the next piece of a body, and the limit for the others, in seconds of the loop's clock.

        Parameters: ``until`` as returned for the former piece; 0 if no piece had to be waited for yet.

        Raises TimeoutError: the piece has not come in time.
        """
        receiving = receive().__await__()
        try:
            awaited = next(receiving)
        except StopIteration as received:
            return received.value, until
        return await self.wait(receiving, awaited, until)

    async def wait(self, receiving: Generator[Any, None, T], awaited: Any, until: float = 0.0) -> tuple[T, float]:
        """As :meth:`next_of`, for a call of ``receive`` that already waits, for ``awaited``."""
        if until:
            async with asyncio.timeout_at(until):
                return await _GoOn(receiving, awaited), until
        task, until = self._begin()
        try:
            message = await _GoOn(receiving, awaited)
        except BaseException:
            in_time = self._end(task)
            del task  # its exception would hold this frame
            if in_time:
                raise
            raise TimeoutError from None
        if not self._end(task):  # cancelled from here, but a layer between swallowed the cancellation
            raise TimeoutError
        return message, until

    def _begin(self) -> tuple[asyncio.Task[Any], float]:
        """Note that the running task waits for a body; return the task and its limit."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._timer, self._reading = loop, None, {}
        task = asyncio.current_task(loop)
        assert task is not None
        until = self._reading[task] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(until, self._look)
        return task, until

    def _end(self, task: asyncio.Task[Any]) -> bool:
        """Return whether a task that has stopped waiting was in time: False only if this clock cancelled it."""
        if self._reading.pop(task, None) is not None or task not in self._late:
            return True
        self._late.discard(task)
        return task.uncancel() > 0  # if others cancelled it as well, that counts

    def _look(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        while self._reading:
            task, until = next(iter(self._reading.items()))
            if until > now:
                self._timer = self._loop.call_at(until, self._look)
                return
            del self._reading[task]
            self._late.add(task)
            task.cancel()
        self._timer = None


class _GoOn(Awaitable[T]):
    """Awaits to its end a generator that already waits, for ``awaited``."""

    __slots__ = ("_awaited", "_receiving")

    def __init__(self, receiving: Generator[Any, None, T], awaited: Any) -> None:
        self._receiving = receiving
        self._awaited = awaited

    def __await__(self) -> Generator[Any, None, T]:
        receiving, awaited = self._receiving, self._awaited
        try:
            while True:
                try:
                    yield awaited
                except GeneratorExit:
                    receiving.close()
                    raise
                except BaseException as thrown:  # noqa: BLE001 -- the receiver decides what it means
                    awaited = receiving.throw(thrown)
                else:
                    awaited = next(receiving)
        except StopIteration as received:
            return received.value  # type: ignore[no-any-return]


@cache
def socket_clock(seconds: float) -> SocketClock:
    """Return the process's clock for bodies with this limit: one thread watches all of them."""
    return SocketClock(seconds)


class SocketClock:
    """The bodies that a WSGI server's threads wait for; one that comes too late is cut off at its connection.

    If a server does not expose its connection (waitress and Apache read the body themselves, wsgiref is for
    development), its own limit applies.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.begin_process()
        begin_in_children(self)

    def begin_process(self) -> None:
        """Start with no body being read: at construction, and in a forked child."""
        self._lock = threading.Lock()
        self._reading: dict[socket.socket, float] = {}  # until when, the first one first
        self._late: set[socket.socket] = set()
        self._thread: threading.Thread | None = None

    def begin(self, environ: Mapping[str, Any]) -> socket.socket | None:
        """Note that a thread reads a request's body; None if the server does not expose its connection."""
        for name in _SOCKETS:
            connection: socket.socket | None = environ.get(name)
            if connection is not None:
                with self._lock:
                    self._reading[connection] = time.monotonic() + self._seconds
                    if self._thread is None:
                        thread = threading.Thread(target=self._watch, name="semel-body-time", daemon=True)
                        with suppress(RuntimeError):  # no thread can start: the next body tries again
                            thread.start()
                            self._thread = thread
                return connection
        return None

    def end(self, connection: socket.socket | None) -> bool:
        """Note that the thread has stopped reading; return False if its body was cut off."""
        if connection is None:
            return True
        with self._lock:
            self._reading.pop(connection, None)
            late = connection in self._late
            self._late.discard(connection)
        return not late

    def _watch(self) -> None:
        idle = False
        while True:
            with self._lock:
                now = time.monotonic()
                while self._reading:
                    connection, until = next(iter(self._reading.items()))
                    if until > now:
                        break
                    del self._reading[connection]
                    self._late.add(connection)
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RD)
                if idle and not self._reading:
                    self._thread = None
                    return
                idle = not self._reading
                seconds = self._seconds if idle else until - now
            time.sleep(seconds)
