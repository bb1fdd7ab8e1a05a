"""psycopg connections that do not wait for ever: a server that hangs, or a network that swallows, ends a wait in time.

libpq has a time-out for connecting alone. psycopg's waits are generators that are woken every tenth of a second,
so that a wrapper around them can look at the clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection

from semel.stores.postgres.notices import Notices
from semel.stores.postgres.psycopg_pipeline import names_of

T = TypeVar("T")

CANCELLED_SECONDS: Final = 1.0  # in which a statement that is cancelled has ended


class Overdue(psycopg.OperationalError):
    """The server did not answer in time. The connection is of no use any more."""


def within(waits: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
    """The same waits, ended by :class:`Overdue` after ``seconds`` in which nothing came of them."""
    ends = time.monotonic() + seconds
    try:
        wanted = next(waits)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= ends:
                waits.close()
                raise Overdue(f"no answer within {seconds:g} seconds")
            wanted = waits.send(ready)
    except StopIteration as stop:
        result: T = stop.value
        return result


class PatientConnection(Connection[Any]):
    """A connection whose every wait ends after ``patience_seconds``; None waits as long as it takes."""

    patience_seconds: float | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.notices = Notices()
        self.add_notice_handler(self.notices)

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """As psycopg's, in time."""
        if self.patience_seconds is None:
            return super().wait(gen, *args, **options)
        try:
            return super().wait(within(gen, self.patience_seconds), *args, **options)
        except Overdue:
            self.pgconn.finish()  # so that nothing is waited for on the way out
            raise

    def is_left_alone(self, seconds: float) -> bool:
        """Whether nothing is under way on it, or ends in time, if need be by force. Otherwise it is finished with.

        A statement of another thread ends when it is cancelled; rows that nobody reads on do not.
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

    patience_seconds: float | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.notices = Notices()
        self.add_notice_handler(self.notices)

    async def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """As psycopg's, in time."""
        if self.patience_seconds is None:
            return await super().wait(gen, *args, **options)
        try:
            return await super().wait(within(gen, self.patience_seconds), *args, **options)
        except Overdue:
            self.pgconn.finish()  # so that nothing is waited for on the way out
            raise

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
