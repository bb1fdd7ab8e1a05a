"""psycopg connections that do not wait for ever: a server that hangs, or a network that swallows, ends a wait in time.

libpq has a time-out for connecting alone, of two seconds at least. psycopg's waits are generators that are woken every
tenth of a second, so that a wrapper around them can look at the clock.
"""

from __future__ import annotations

import asyncio
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

T = TypeVar("T")

_READ, _WRITE = int(Wait.R), int(Wait.W)
CANCELLED_SECONDS: Final = 1.0  # in which a statement that is cancelled has ended


class Overdue(psycopg.OperationalError):
    """The server did not answer in time. The connection is of no use any more."""


def within(waits: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
    """The same waits, ended by :class:`Overdue` after ``seconds``."""
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


async def _wait_within(waits: Generator[Any, Any, T], fileno: int, seconds: float | None) -> T:
    """Perform the waits on the running event loop; :class:`Overdue` ends them after ``seconds``."""
    try:
        wanted = next(waits)
        loop = asyncio.get_running_loop()
        ends = None if seconds is None else loop.time() + seconds
        while True:
            woken: asyncio.Future[int] = loop.create_future()
            if wanted & _READ:
                loop.add_reader(fileno, _wake, woken, Ready.R)
            if wanted & _WRITE:
                loop.add_writer(fileno, _wake, woken, Ready.W)
            timer = None if ends is None else loop.call_at(ends, _wake, woken, 0)
            try:
                ready = await woken
            finally:
                if timer is not None:
                    timer.cancel()
                if wanted & _READ:
                    loop.remove_reader(fileno)
                if wanted & _WRITE:
                    loop.remove_writer(fileno)
            if not ready:
                waits.close()
                raise Overdue(f"no answer within {seconds:.3g} seconds")
            wanted = waits.send(ready)
    except OSError as error:
        raise psycopg.OperationalError("connection socket closed") from error
    except StopIteration as stop:
        result: T = stop.value
        return result


def _wake(woken: asyncio.Future[int], ready: int) -> None:
    if not woken.done():
        woken.set_result(ready)


class _Interrupted:
    """Waits that were interrupted, for psycopg to deal with in its own way: it cancels the statement, and goes on."""

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
        """How long the next host may take: one that hangs leaves time for those behind it."""
        share = self.deadline.before_sending() / max(1, self.hosts)
        self.hosts -= 1
        return share


_OPENING: Final[ContextVar[_Opening | None]] = ContextVar("semel_opening", default=None)


@contextmanager
def opening(conninfo: str, deadline: Deadline) -> Iterator[None]:
    """What :class:`PatientConnection` and its async form connect to inside ends in time."""
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
        """A statement of the call has been answered."""
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
        """Whether nothing is under way on it, or ends in time, if need be by force. Otherwise it is finished with.

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
        """psycopg drops everything that the session has prepared after a rollback, and so what trips have."""
        if name is None:
            names_of(self).clear()
        return super()._deallocate(name)


class PatientAsyncConnection(AsyncConnection[Any]):
    """As :class:`PatientConnection`, on an event loop."""

    deadline: Deadline | None = None

    def note_answer(self) -> None:
        """A statement of the call has been answered."""
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
        """As psycopg's, in time, and with fewer steps: this is what each round trip of a command waits by."""
        seconds = None if self.deadline is None else self.deadline.for_answer()
        try:
            if args or options:
                return await super().wait(gen if seconds is None else within(gen, seconds), *args, **options)
            return await _wait_within(gen, self.pgconn.socket, seconds)
        except Overdue:
            self.pgconn.finish()  # so that nothing is waited for on the way out
            raise
        except (asyncio.CancelledError, KeyboardInterrupt) as error:
            if args or options:
                raise
            interrupted: Any = _Interrupted(gen, error)
            return await super().wait(interrupted)

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
        self.pgconn.finish()
        return False

    def _deallocate(self, name: bytes | None) -> Any:
        """psycopg drops everything that the session has prepared after a rollback, and so what trips have."""
        if name is None:
            names_of(self).clear()
        return super()._deallocate(name)
