"""A purge of many records takes minutes: what lapses meanwhile is made visible in time all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Command, Permit, Policy, Scope
from semel.core.model import Purged
from semel.errors import StoreUnavailable
from semel.retention.flow import REST_SECONDS_MAX, rest_seconds
from semel.retention.worker import Reaper
from semel.stores.backend import Backend
from semel.stores.memory.driver import LocalDriver
from semel.stores.memory.store import MemoryStore
from semel.telemetry import Counting

SECOND_US = 1_000_000


class Heard(Counting):
    """Counts, and wakes the waiters for an event."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[str, asyncio.Event] = {}

    def of(self, name: str) -> asyncio.Event:
        """Set at the next event of this name."""
        return self.heard.setdefault(name, asyncio.Event())

    def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
        super().event(name, value, labels, detail)
        self.of(name).set()


class LongPurge(MemoryStore):
    """A purge whose chunks do not end before a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks = 0
        self.begun = asyncio.Event()
        self.over = False

    def purge(self, after: int | None, chunk: int) -> Any:
        self.chunks += 1
        self.begun.set()
        found: Purged = yield from super().purge(after, chunk)
        return found if self.over else found._replace(next_after=1)


class Yielding(LocalDriver):
    """Lets others run between two calls, as every driver does that waits for a disk or a server."""

    now = 1_800_000_000 * SECOND_US
    fails = False

    async def run_async(self, make: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        if self.fails:
            raise StoreUnavailable("the store is away")
        return self.run(make)


async def scenario(end: Callable[[Yielding, LongPurge, Heard, asyncio.Task[None]], Any]) -> None:
    store, heard = LongPurge(), Heard()
    driver = Yielding(clock=lambda: driver.now)
    async with AsyncEngine(Backend("memory", store, driver), observer=heard) as engine:
        reaping = asyncio.create_task(Reaper(engine, every_seconds=0.01, purge_every_seconds=0.001).run())
        async with asyncio.timeout(20):
            await store.begun.wait()
            permit = await engine.claim(Command(Scope("t", "c", "pay"), "k", bytes(32), "r", Policy(lease_seconds=5)))
            assert isinstance(permit, Permit)
            engine.core.live.clear()
            driver.now += 6 * SECOND_US
            await heard.of("lapsed").wait()
            assert not heard.of("purged").is_set()
            await end(driver, store, heard, reaping)
        reaping.cancel()
        await asyncio.wait({reaping})
        assert reaping.cancelled()
        chunks = store.chunks
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert store.chunks == chunks  # nothing of it continues


def test_a_lapse_is_reported_during_a_purge_and_the_purge_ends() -> None:
    async def end(driver: Yielding, store: LongPurge, heard: Heard, reaping: asyncio.Task[None]) -> None:
        store.over = True
        await heard.of("purged").wait()

    asyncio.run(scenario(end))


def test_a_reaper_that_ends_stops_its_purge() -> None:
    async def end(driver: Yielding, store: LongPurge, heard: Heard, reaping: asyncio.Task[None]) -> None:
        return None

    asyncio.run(scenario(end))


def test_a_failed_purge_starts_again() -> None:
    async def end(driver: Yielding, store: LongPurge, heard: Heard, reaping: asyncio.Task[None]) -> None:
        driver.fails = True
        await heard.of("store_errors").wait()
        driver.fails = False
        store.over = True
        await heard.of("purged").wait()
        assert not reaping.done()

    asyncio.run(scenario(end))


def test_a_purge_rests_after_each_chunk_that_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rested: list[tuple[int, bool]] = []

    def rest(done: Purged, took: float) -> float:
        rested.append((done.forgotten, took >= 0))
        return rest_seconds(done, took)

    async def scenario() -> None:
        driver = Yielding(clock=lambda: driver.now)
        async with AsyncEngine(Backend("memory", MemoryStore(), driver)) as engine:
            for key in ("a", "b", "c"):
                command = Command(Scope("t", "c", "pay"), key, bytes(32), "r", Policy())
                await engine.run(command, answer)
            driver.now += 31 * 86_400 * SECOND_US
            await Reaper(engine).purge(chunk=2)

    async def answer(permit: Permit) -> Answer:
        return Answer(201, (), b"done")

    monkeypatch.setattr("semel.retention.worker.rest_seconds", rest)
    asyncio.run(scenario())

    assert rested == [(0, True), (2, True), (1, True)]  # the first call forgets what quotas have counted
    assert rest_seconds(Purged(500, 1, 0, 501), 0.25) == 0.25
    assert rest_seconds(Purged(500, 0, 0, 501), 0.25) == 0
    assert rest_seconds(Purged(500, 1, 0, 501), 60) == REST_SECONDS_MAX
