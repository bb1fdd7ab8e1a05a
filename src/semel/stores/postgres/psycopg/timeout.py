"""psycopg connections with time-outs: no wait outlasts its deadline, even if the server hangs or the network is lost.

libpq has a time-out for connecting alone, of two seconds at least. psycopg's waits are generators that are woken every
tenth of a second, so that a wrapper around them can look at the clock.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict
from psycopg.waiting import Ready, Wait

from semel.stores.deadline import Deadline
from semel.stores.postgres.notices import Notices
from semel.stores.postgres.psycopg.pipeline import names_of
from semel.stores.process import this_process

T = TypeVar("T")

_READ, _WRITE = int(Wait.R), int(Wait.W)
CANCELLED_SECONDS: Final = 1.0  # time for a cancelled statement to end


class Overdue(psycopg.OperationalError):
    """The server did not answer in time. The connection is no longer usable."""


def within(waits: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
    """Make the same waits, ended by :class:`Overdue` after ``seconds``."""
    ends = time.monotonic() + seconds
    try:
        wanted = next(waits)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= ends:
                waits.close()
                raise Overdue(f"no answer within {seconds:.3g} seconds")
            wanted = waits.send(ready)
    except StopIteration as stop:
        result: T = stop.value
        return result


class Watch:
    """Tells when a connection's socket can be read. It lasts from the first wait on: to register and remove it for each
    answer would cost more than the waits themselves.

    It watches its own descriptor of the socket. libpq may close its descriptor at any time; another file may then get
    its number, and the loop would watch that file. Data that arrives while no task waits is the end of the connection,
    or a notice: the watch ends, and the next wait begins another.
    """

    __slots__ = ("_fd", "_loop", "_process", "_unawaited", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: int) -> None:
        self._loop = loop
        self._process = this_process()
        self._fd = -1
        self._fd = os.dup(socket)
        self._unawaited = 0
        self._waiter: asyncio.Future[int] | None = None
        loop.add_reader(self._fd, self._wake)

    @property
    def is_over(self) -> bool:
        """Whether the watch has ended."""
        return self._fd < 0

    def is_free(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the watch belongs to this loop and no task waits for it."""
        return self._waiter is None and self._loop is loop

    async def until_readable(self, ends: float | None) -> int:
        """Return ``Ready.R``, or nothing if the time ``ends`` before. One task at a time may wait."""
        self._unawaited = 0
        woken: asyncio.Future[int] = self._loop.create_future()
        self._waiter = woken
        timer = None if ends is None else self._loop.call_at(ends, _wake, woken, 0)
        try:
            return await woken
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        woken = self._waiter
        if woken is not None:
            _wake(woken, Ready.R)
            return
        self._unawaited += 1  # once it is what was just read: asyncio asks the system before it runs what reads
        if self._unawaited > 1:
            self.end()

    def end(self) -> None:
        """Stop watching. Call it on the loop's own thread, or when the loop is closed.

        A waiting task wakes up and finds the connection closed. A forked child leaves its parent's loop alone: both
        share the registrations of the system's poller.
        """
        if not self.is_over and self._process is this_process() and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
            if self._waiter is not None:
                _wake(self._waiter, Ready.R)
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = _close  # the loop is gone, which refers to it else


async def _until_ready(loop: asyncio.AbstractEventLoop, fileno: int, wanted: int, ends: float | None) -> int:
    """Wait until the socket can be read or written, and return which; neither where the time ``ends`` before."""
    woken: asyncio.Future[int] = loop.create_future()
    if wanted & _READ:
        loop.add_reader(fileno, _wake, woken, Ready.R)
    if wanted & _WRITE:
        loop.add_writer(fileno, _wake, woken, Ready.W)
    timer = None if ends is None else loop.call_at(ends, _wake, woken, 0)
    try:
        return await woken
    finally:
        if timer is not None:
            timer.cancel()
        if wanted & _READ:
            loop.remove_reader(fileno)
        if wanted & _WRITE:
            loop.remove_writer(fileno)


def _wake(woken: asyncio.Future[int], ready: int) -> None:
    if not woken.done():
        woken.set_result(ready)


class _Interrupted:
    """Waits that were interrupted. psycopg handles them in its own way: it cancels the statement, and goes on."""

    def __init__(self, waits: Generator[Any, Any, Any], error: BaseException) -> None:
        self._waits = waits
        self._error: BaseException | None = error

    def __next__(self) -> Any:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return next(self._waits)

    def send(self, ready: Any) -> Any:
        """As a generator's."""
        return self._waits.send(ready)

    def close(self) -> None:
        """As a generator's."""
        self._waits.close()


@dataclass
class _Opening:
    """A connection that is being opened: how many of the URL's hosts are still to be tried, and until when."""

    deadline: Deadline
    hosts: int

    def seconds(self) -> float:
        """Return how long the next host may take: one that hangs leaves time for those behind it."""
        share = self.deadline.before_sending() / max(1, self.hosts)
        self.hosts -= 1
        return share


_OPENING: Final[ContextVar[_Opening | None]] = ContextVar("semel_opening", default=None)


@contextmanager
def opening(conninfo: str, deadline: Deadline) -> Iterator[None]:
    """Bound the time in which :class:`PatientConnection` and its async form connect inside."""
    places = conninfo_to_dict(conninfo)
    token = _OPENING.set(_Opening(deadline, str(places.get("host") or places.get("hostaddr") or "").count(",") + 1))
    try:
        yield
    finally:
        _OPENING.reset(token)


def _connecting(waits: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    opened = _OPENING.get()
    return waits if opened is None else within(waits, opened.seconds())


class PatientConnection(Connection[Any]):
    """A connection whose waits end with ``deadline``; None waits as long as it takes."""

    deadline: Deadline | None = None

    def note_answer(self) -> None:
        """Note that a statement of the call has been answered."""
        if self.deadline is not None:
            self.deadline.note_answer()

    @classmethod
    def _connect_gen(cls, *args: Any, **options: Any) -> Any:  # psycopg 3.1 to 3.3: once for each host
        return _connecting(super()._connect_gen(*args, **options))

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.notices = Notices()
        self.add_notice_handler(self.notices)

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """As psycopg's, in time."""
        if self.deadline is None:
            return super().wait(gen, *args, **options)
        try:
            return super().wait(within(gen, self.deadline.for_answer()), *args, **options)
        except Overdue:
            self.pgconn.finish()  # so that nothing is waited for on the way out
            raise

    def is_left_alone(self, seconds: float) -> bool:
        """Whether the connection is idle, or becomes so in time, if need be by a cancel. Otherwise it is closed.

        Cancelling ends another thread's statement, but not a result whose rows are left unread.
        """
        for patience in (seconds, CANCELLED_SECONDS):
            if self.lock.acquire(timeout=patience):
                self.lock.release()
                return True
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=CANCELLED_SECONDS)
        self.pgconn.finish()
        return False

    def _deallocate(self, name: bytes | None) -> Any:
        """Forget what trips have prepared: after a rollback psycopg drops all that the session has prepared."""
        if name is None:
            names_of(self).clear()
        return super()._deallocate(name)


class PatientAsyncConnection(AsyncConnection[Any]):
    """As :class:`PatientConnection`, on an event loop."""

    deadline: Deadline | None = None
    _watch: Watch | None = None

    def note_answer(self) -> None:
        """Note that a statement of the call has been answered."""
        if self.deadline is not None:
            self.deadline.note_answer()

    @classmethod
    def _connect_gen(cls, *args: Any, **options: Any) -> Any:
        return _connecting(super()._connect_gen(*args, **options))

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.notices = Notices()
        self.add_notice_handler(self.notices)

    async def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """Wait as psycopg does, in time, and with fewer steps: each round trip of a command waits here."""
        seconds = None if self.deadline is None else self.deadline.for_answer()
        try:
            if args or options:
                return await super().wait(gen if seconds is None else within(gen, seconds), *args, **options)
            return await self._wait_within(gen, seconds)
        except BaseException as error:  # noqa: BLE001 - it is raised again, or psycopg deals with it
            if isinstance(error, Overdue):
                self.pgconn.finish()  # so that nothing is waited for on the way out
            try:
                if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)) and not (args or options):
                    interrupted: Any = _Interrupted(gen, error)
                    return await super().wait(interrupted)
                raise
            finally:
                if self.closed:
                    self._end_watch()

    async def _wait_within(self, waits: Generator[Any, Any, T], seconds: float | None) -> T:
        """Perform the waits on the running event loop; :class:`Overdue` ends them after ``seconds``."""
        socket = self.pgconn.socket
        try:
            wanted = next(waits)
            loop = asyncio.get_running_loop()
            ends = None if seconds is None else loop.time() + seconds
            while True:
                watch = self._watch_free(loop, socket) if wanted == _READ else None
                if watch is None:
                    ready = await _until_ready(loop, socket, wanted, ends)
                else:
                    ready = await watch.until_readable(ends)
                if not ready:
                    waits.close()
                    raise Overdue(f"no answer within {seconds:.3g} seconds")
                wanted = waits.send(ready)
        except OSError as error:
            raise psycopg.OperationalError("connection socket closed") from error
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _watch_free(self, loop: asyncio.AbstractEventLoop, socket: int) -> Watch | None:
        """Return this connection's watch; None where there can be none, or where another task already waits for it."""
        watch = self._watch
        if watch is None or watch.is_over:
            try:
                watch = self._watch = Watch(loop, socket)
            except OSError:  # this process may open no more files; on Windows a socket is none
                return None
        return watch if watch.is_free(loop) else None

    def take_watch(self, former: PatientAsyncConnection) -> None:
        """Take over the watch of another object for the same session."""
        self._watch, former._watch = former._watch, None

    def finish(self) -> None:
        """Close the connection at once, on its loop or once that is closed."""
        self._end_watch()
        self.pgconn.finish()

    async def close(self) -> None:
        """As psycopg's."""
        self._end_watch()
        await super().close()

    def _end_watch(self) -> None:
        if self._watch is not None:  # its descriptor would keep the connection open
            self._watch.end()

    async def is_left_alone(self, seconds: float) -> bool:
        """As :meth:`PatientConnection.is_left_alone`."""
        if not self.lock.locked():
            return True
        for patience in (seconds, CANCELLED_SECONDS):
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self.lock.acquire()
                self.lock.release()
                return True
            with suppress(psycopg.Error):
                await self.cancel_safe(timeout=CANCELLED_SECONDS)
        self.finish()
        return False

    def _deallocate(self, name: bytes | None) -> Any:
        """Forget what trips have prepared: after a rollback psycopg drops all that the session has prepared."""
        if name is None:
            names_of(self).clear()
        return super()._deallocate(name)
