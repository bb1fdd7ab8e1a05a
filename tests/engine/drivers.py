"""Drivers that deliver late or out of order: the network between an engine and its store, in the test's hand."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from semel.core.flow import Ask, MakeFlow
from semel.errors import StoreTimeout
from semel.stores.backend import Backend
from semel.stores.clock import Clock
from semel.stores.memory.driver import LocalDriver
from semel.stores.memory.store import MemoryStore
from semel.stores.sqlite.connection import Answer, answering
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.url import sqlite_backend
from semel.testing.clock import SettableClock
from semel.testing.faults import name_of

T = TypeVar("T")


def memory(clock: Clock | None = None) -> Backend:
    """A memory store on a clock that does not move."""
    return Backend("memory", MemoryStore(), LocalDriver(clock=clock or SettableClock()))


def sqlite(
    path: Path, clock: Clock | None = None, *, before: Callable[[str], None] | None = None, busy_seconds: float = 5.0
) -> Backend:
    """The SQLite store; ``before`` is called with the name of each ask before it is performed."""

    def performing(connection: sqlite3.Connection, now: Clock) -> Answer:
        answer = answering(connection, now)

        def answer_after_hook(needed: Ask[Any]) -> Any:
            if before is not None:
                before(name_of(needed))
            return answer(needed)

        return answer_after_hook

    driver = SqliteDriver(
        str(path),
        synchronous="OFF",
        clock=clock or SettableClock(),
        answering=performing,
        busy_seconds=busy_seconds,
    )
    return sqlite_backend(driver, busy_seconds)


class SlowReplies:
    """Performs at once and delays its replies: ``hold`` is closed while a reply is on its way."""

    def __init__(self) -> None:
        self.inner = LocalDriver(clock=SettableClock())
        self.hold: asyncio.Event | None = None
        self.performed = 0

    async def run_async(self, make: MakeFlow[T]) -> T:
        reply = self.inner.run(make)
        self.performed += 1
        if self.hold is not None:
            await self.hold.wait()
        return reply

    async def close_async(self) -> None:
        return None


class SlowBatches:
    """Gathers what comes while a batch is out, as the drivers of servers do; each takes some turns of the loop."""

    coalesces = True
    patience_seconds = 5.0
    turns = 3

    def __init__(self) -> None:
        self.inner = LocalDriver(clock=SettableClock())

    async def run_async(self, make: MakeFlow[T]) -> T:
        await self._pass()
        reply = self.inner.run(make)
        await self._pass()
        return reply

    async def run_uncut(self, make: MakeFlow[T], waited: float) -> T:
        return await self.run_async(make)

    async def _pass(self) -> None:
        for _ in range(self.turns):
            await asyncio.sleep(0)

    async def close_async(self) -> None:
        return None


class FailingReplies:
    """While ``fail`` is set, a call waits for it and is never performed; then all is well again."""

    def __init__(self) -> None:
        self.inner = LocalDriver(clock=SettableClock())
        self.fail: asyncio.Event | None = None

    async def run_async(self, make: MakeFlow[T]) -> T:
        if self.fail is not None:
            await self.fail.wait()
            raise StoreTimeout("no reply")
        return self.inner.run(make)

    async def close_async(self) -> None:
        return None


class LateDelivery:
    """Loses patience with the first call, and delivers it later: "not known yet" made long."""

    def __init__(self) -> None:
        self.inner = LocalDriver(clock=SettableClock())
        self.in_transit: MakeFlow[Any] | None = None
        self.calls = 0

    async def run_async(self, make: MakeFlow[T]) -> T:
        self.calls += 1
        if self.calls == 1:
            self.in_transit = make
            raise StoreTimeout("no reply yet")
        return self.inner.run(make)

    def deliver(self) -> Any:
        """The packet arrives."""
        assert self.in_transit is not None
        return self.inner.run(self.in_transit)

    async def close_async(self) -> None:
        return None
