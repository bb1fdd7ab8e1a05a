"""A connection that is opened inside a library which forgets a cancellation: its caller still gets it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from semel.errors import StoreUnavailable
from semel.stores.deadline import Deadline
from semel.stores.mariadb.asyncmy_client import open_connection
from semel.stores.mariadb.protocol import MariadbServer

PATIENCE_SECONDS = 30  # a bound for a test that hangs, not a pause


class Deaf:
    """Goes on after the first cancellations, as ``asyncio.wait_for`` of Python 3.11 does in the wrong moment."""

    forgets = 2
    opens = False

    def __init__(self, **options: Any) -> None:
        self.cancelled = 0
        self.begun, self.over, self.closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        made.append(self)

    async def connect(self) -> None:
        self.begun.set()
        while self.cancelled <= self.forgets:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
        self.over.set()
        self.closed.clear()
        if not self.opens:
            raise asyncio.CancelledError

    def close(self) -> None:
        self.closed.set()


class DeafAndLate(Deaf):
    """Ignores the cancellations, and connects at the moment in which its caller gives up."""

    opens = True


made: list[Deaf] = []


@pytest.mark.parametrize("kind", [Deaf, DeafAndLate])
def test_a_deadline_ends_the_wait_for_a_connection(kind: type[Deaf], server: MariadbServer) -> None:
    async def story() -> None:
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            await open_connection(kind, server, Deadline(0.01))
        await made[0].over.wait()
        await made[0].closed.wait()

    made.clear()
    asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))


@pytest.mark.parametrize("kind", [Deaf, DeafAndLate])
def test_a_cancelled_caller_ends_the_wait_for_a_connection(kind: type[Deaf], server: MariadbServer) -> None:
    async def story() -> None:
        opening = asyncio.ensure_future(open_connection(kind, server, Deadline(PATIENCE_SECONDS)))
        await asyncio.sleep(0)
        await made[0].begun.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await made[0].over.wait()
        await made[0].closed.wait()

    made.clear()
    asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))
