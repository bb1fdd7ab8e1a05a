"""The reaper: lapsed commands become visible in time despite store errors, and the purge reads everything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Command, Permit, Policy, Scope, State
from semel.core.model import Find, Record
from semel.errors import PolicyError, StoreUnavailable
from semel.retention.worker import LAPSE_CHUNK, Reaper
from semel.stores.backend import Backend
from semel.stores.memory.driver import LocalDriver
from semel.stores.memory.store import MemoryStore
from semel.telemetry import Counting

SECOND_US = 1_000_000


class Times:
    """A clock that moves only when advanced."""

    def __init__(self) -> None:
        self.now = 1_800_000_000 * SECOND_US

    def __call__(self) -> int:
        return self.now


class Failing(LocalDriver):
    """Fails its next calls."""

    failures = 0

    async def run_async(self, make: Callable[[], Any]) -> Any:
        if self.failures > 0:
            self.failures -= 1
            raise StoreUnavailable("the store is away")
        return self.run(make)


class Heard(Counting):
    """Counts, and wakes the waiters for an event."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self.heard = asyncio.Event()

    def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
        super().event(name, value, labels, detail)
        if name == self._name:
            self.heard.set()


def command(key: str, **options: Any) -> Command:
    return Command(Scope("demo", "alice", "pay"), key, bytes(32), "test", Policy.of(**options))


async def record_of(engine: AsyncEngine, permit: Permit) -> Record:
    [record] = await engine.perform("read", lambda: engine.store.read((permit.grant.id,)))
    assert record is not None
    return record


async def abandon_claim(engine: AsyncEngine, key: str, **options: Any) -> Permit:
    """A claim whose holder is never heard of again."""
    permit = await engine.claim(command(key, **options))
    assert isinstance(permit, Permit)
    engine.core.live.clear()
    return permit


def test_a_lapsed_external_command_becomes_unknown_and_is_reported() -> None:
    async def scenario() -> None:
        times, counting = Times(), Counting()
        backend = Backend("memory", MemoryStore(), LocalDriver(clock=times))
        async with AsyncEngine(backend, observer=counting) as engine:
            reaper = Reaper(engine)
            permit = await abandon_claim(engine, "key-1", lease_seconds=5)
            times.now += 5 * SECOND_US - 1
            assert await reaper.run_once() == 0
            times.now += 1
            assert await reaper.run_once() == 1
            record = await record_of(engine, permit)
            assert (record.state, record.doubt) == (State.UNKNOWN, "lapsed")
            assert await reaper.run_once() == 0
            assert counting.counts["lapsed", ("pay",)] == 1
            assert counting.counts["unknown", ("pay", "lapsed")] == 1

    asyncio.run(scenario())


def test_a_retryable_lapse_stays_for_its_retry() -> None:
    async def scenario() -> None:
        times = Times()
        async with AsyncEngine(Backend("memory", MemoryStore(), LocalDriver(clock=times))) as engine:
            permit = await abandon_claim(engine, "key-1", effects="idempotent", lease_seconds=5)
            times.now += 6 * SECOND_US
            assert await Reaper(engine).run_once() == 0
            assert (await record_of(engine, permit)).state == State.PROCESSING

    asyncio.run(scenario())


def test_more_than_a_chunk_is_reaped_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        times = Times()
        async with AsyncEngine(Backend("memory", MemoryStore(), LocalDriver(clock=times))) as engine:
            for number in range(LAPSE_CHUNK + 1):
                await abandon_claim(engine, f"key-{number}", lease_seconds=5)
            times.now += 6 * SECOND_US
            assert await Reaper(engine).run_once() == LAPSE_CHUNK + 1

    asyncio.run(scenario())


def test_a_lapse_is_visible_within_the_lease_and_one_second(tmp_path: Path) -> None:
    async def scenario() -> float:
        heard = Heard("unknown")
        engine = AsyncEngine.connect(f"sqlite:///{tmp_path / 'semel.db'}", observer=heard)
        await engine.migrate()
        async with engine:
            reaping = asyncio.create_task(Reaper(engine).run())
            permit = await abandon_claim(engine, "key-1", lease_seconds=1)
            started = time.monotonic()
            async with asyncio.timeout(20):
                await heard.heard.wait()
            waited = time.monotonic() - started
            assert (await record_of(engine, permit)).state == State.UNKNOWN
            reaping.cancel()
            with suppress(asyncio.CancelledError):
                await reaping
        return waited

    assert asyncio.run(scenario()) <= 2


def test_the_reaper_survives_a_store_outage() -> None:
    async def scenario() -> None:
        times, heard, driver = Times(), Heard("unknown"), Failing()
        driver._clock = times
        async with AsyncEngine(Backend("memory", MemoryStore(), driver), observer=heard) as engine:
            await abandon_claim(engine, "key-1", lease_seconds=5)
            times.now += 6 * SECOND_US
            driver.failures = 1 + 5  # the first look at the clock, too
            reaping = asyncio.create_task(Reaper(engine, every_seconds=0.001).run())
            async with asyncio.timeout(20):
                await heard.heard.wait()
            assert driver.failures == 0
            assert heard.counts["store_errors", ("lapse", "StoreUnavailable")] == 5
            reaping.cancel()
            with suppress(asyncio.CancelledError):
                await reaping

    asyncio.run(scenario())


def test_the_purge_reads_everything_and_deletes_nothing_open() -> None:
    async def scenario() -> None:
        times, counting = Times(), Counting()
        backend = Backend("memory", MemoryStore(), LocalDriver(clock=times))
        async with AsyncEngine(backend, observer=counting) as engine:

            async def answer(permit: Permit) -> Answer:
                return Answer(200, (), b"done")

            for number in range(7):
                await engine.run(command(f"key-{number}", answer_seconds=60, tombstone_seconds=120), answer)
            await engine.run(command("kept"), answer)
            await abandon_claim(engine, "open", answer_seconds=60, tombstone_seconds=120)
            times.now += 3600 * SECOND_US
            total = await Reaper(engine).purge(chunk=2)
            assert (total.scanned, total.forgotten) == (9, 7)
            assert counting.total("purged") == 7
            page = await engine.perform("find", lambda: engine.store.find(Find()))
            assert len(page.records) == 2

    asyncio.run(scenario())


def test_the_reaper_purges_hourly() -> None:
    async def scenario() -> None:
        heard = Heard("purged")
        async with AsyncEngine.connect("memory://", observer=heard) as engine:
            reaping = asyncio.create_task(Reaper(engine, every_seconds=0.001, purge_every_seconds=0.002).run())
            async with asyncio.timeout(20):
                await heard.heard.wait()
            reaping.cancel()
            with suppress(asyncio.CancelledError):
                await reaping

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "options", [{"every_seconds": 0}, {"every_seconds": 1}, {"every_seconds": -1}, {"purge_every_seconds": 0}]
)
def test_an_interval_too_long_for_the_promise_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(PolicyError):
        Reaper(AsyncEngine.connect("memory://"), **options)
