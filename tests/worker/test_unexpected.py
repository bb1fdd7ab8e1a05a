"""Unexpected errors: each background loop logs one once, rests, and continues; so does renewal."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Command, Engine, Permit, Policy, Scope
from semel.errors import StoreTimeout
from semel.outbox.worker import Relay
from semel.reconciliation.worker import Case, Reconciling, StillUnknown, reconciler
from semel.resuming.worker import Completer
from semel.retention.worker import Reaper
from semel.stores.backend import Backend
from semel.stores.memory.driver import LocalDriver
from semel.stores.memory.store import MemoryStore
from semel.workers.loop import Loop
from semel.workers.trouble import REST_SECONDS_MAX, Trouble
from tests.outbox.conftest import SQLITE, Broker, make_place


class Faulty(LocalDriver):
    """A driver with a mistake in it: its next calls raise what no driver may raise."""

    failures = 0
    failed = 0

    def run(self, make: Callable[[], Any]) -> Any:
        if self.failures > 0:
            self.failures -= 1
            self.failed += 1
            raise ZeroDivisionError("a mistake of ours")
        return super().run(make)

    async def run_async(self, make: Callable[[], Any]) -> Any:
        return self.run(make)


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def command(key: str, **options: Any) -> Command:
    return Command(Scope("demo", "alice", "pay"), key, bytes(32), "test", Policy.of(**options))


def test_pauses_grow_and_a_repeated_error_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble("the reaper")
    rests = [trouble.note_error(ZeroDivisionError("x")) for _ in range(20)]
    assert rests == sorted(rests)
    assert rests[-1] == REST_SECONDS_MAX
    assert len(errors_of(caplog)) == 1
    trouble.note_error(KeyError("y"))
    assert len(errors_of(caplog)) == 2  # another error is news
    trouble.over()
    assert trouble.note_error(ZeroDivisionError("x")) == rests[0]
    assert len(errors_of(caplog)) == 3  # so is the same one, after it had worked


class Stumbling(Loop):
    """Raises at its first looks."""

    def __init__(self, failures: int) -> None:
        super().__init__("stumbling", 0.001)
        self.failures = failures
        self.looked = asyncio.Event()

    async def _look(self) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise ZeroDivisionError("a mistake of ours")
        self.looked.set()


def test_a_loop_survives_unexpected_errors(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with Stumbling(2) as loop, asyncio.timeout(20):
            await loop.looked.wait()

    asyncio.run(story())
    assert len(errors_of(caplog)) == 1
    assert "stumbling met an unexpected ZeroDivisionError" in errors_of(caplog)[0]


def test_the_reaper_survives_a_purge_that_fails_unexpectedly(caplog: pytest.LogCaptureFixture) -> None:
    class Purging(Reaper):
        purged = 0
        done = asyncio.Event()

        async def purge(self, chunk: int = 500) -> Any:
            self.purged += 1
            if self.purged < 3:
                raise ZeroDivisionError("a mistake of ours")
            self.done.set()

    async def story() -> None:
        async with AsyncEngine.connect("memory://") as engine:
            reaper = Purging(engine, every_seconds=0.001, purge_every_seconds=0.002)
            async with reaper, asyncio.timeout(20):
                await reaper.done.wait()

    asyncio.run(story())
    assert len(errors_of(caplog)) == 1


def test_reconcilers_continue_after_an_unexpected_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    @reconciler("pay", quiet_for=0)
    def ask(case: Case) -> StillUnknown:
        asked.append(case.operation_id)
        return StillUnknown("no word yet")

    async def story() -> str:
        engine = AsyncEngine.connect(f"sqlite:///{tmp_path}/semel.db")
        await engine.migrate()
        ids: list[str] = []

        async def handler(permit: Permit) -> Answer:
            ids.append(permit.operation_id)
            raise ConnectionError("the provider hung up")

        async with engine:
            for key in ("key-1", "key-2"):
                with pytest.raises(ConnectionError):
                    await engine.run(command(key), handler)

            def case(record: Any, operation: Any, times: int) -> Case:
                if record.operation_id.hex() == ids[1].replace("-", ""):
                    raise ZeroDivisionError("a damaged record")
                return Case(record, operation, times)

            monkeypatch.setattr("semel.reconciliation.worker.Case", case)
            round = await Reconciling(engine, [ask]).run_once()
            assert round.asked == 1
        return ids[0]

    sound = asyncio.run(story())
    assert asked == [sound]
    assert "a reconciliation met an unexpected ZeroDivisionError" in errors_of(caplog)[0]


def test_the_relay_survives_unexpected_errors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = make_place(SQLITE, tmp_path)
    made = place.fill(3)
    broker = Broker()

    async def story() -> None:
        async with AsyncEngine.connect(place.url) as engine:
            relay = Relay(engine, broker)
            due, failures = relay._events.due, [1, 1]

            def mistaken(*args: Any, **named: Any) -> Any:
                if failures:
                    failures.pop()
                    raise ZeroDivisionError("a mistake of ours")
                return due(*args, **named)

            relay._events.due = mistaken  # type: ignore[method-assign]
            async with asyncio.timeout(30), relay:
                await broker.has(3)

    asyncio.run(story())
    assert sorted(broker.ids) == sorted(event.id for event in made)
    assert len(errors_of(caplog)) == 1


def test_the_completer_survives_unexpected_errors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        engine = AsyncEngine.connect(f"sqlite:///{tmp_path}/semel.db")
        await engine.migrate()
        async with engine:
            completer = Completer(engine, every_seconds=0.001)

            async def handler(permit: Permit, request: bytes) -> Answer:
                return Answer(201, (), b"paid")

            completer.register("pay", Policy.of(steps=True, resumable=True), handler)
            looked, turn, failures = asyncio.Event(), engine.store.turn, [1, 1]  # type: ignore[attr-defined]

            def mistaken(*args: Any) -> Any:
                if failures:
                    failures.pop()
                    raise ZeroDivisionError("a mistake of ours")
                looked.set()
                return turn(*args)

            engine.store.turn = mistaken  # type: ignore[attr-defined]
            async with completer, asyncio.timeout(20):
                await looked.wait()

    asyncio.run(story())
    assert len(errors_of(caplog)) == 1


def test_async_leases_are_renewed_after_an_unexpected_error(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        driver, renewed = Faulty(), asyncio.Event()
        async with AsyncEngine(Backend("memory", MemoryStore(), driver)) as engine:
            permit = await engine.claim(command("key-1", lease_seconds=1))
            assert isinstance(permit, Permit)
            driver.failures = 1
            noted = engine.core.note_renewals

            def note(*args: Any) -> None:
                noted(*args)
                renewed.set()

            engine.core.note_renewals = note  # type: ignore[assignment,method-assign]
            async with asyncio.timeout(20):
                await renewed.wait()
            assert driver.failed == 1
            assert not permit.lost
            engine.core.live.clear()

    asyncio.run(story())
    assert len(errors_of(caplog)) == 1
    assert "the renewal of leases met an unexpected" in errors_of(caplog)[0]


def test_the_upkeep_thread_survives_an_unexpected_error(caplog: pytest.LogCaptureFixture) -> None:
    driver, renewed = Faulty(), threading.Event()
    with Engine(Backend("memory", MemoryStore(), driver)) as engine:
        permit = engine.claim(command("key-1", lease_seconds=1))
        assert isinstance(permit, Permit)
        driver.failures = 1
        noted = engine.core.note_renewals

        def note(*args: Any) -> None:
            noted(*args)
            renewed.set()

        engine.core.note_renewals = note  # type: ignore[assignment,method-assign]
        assert renewed.wait(20)
        assert driver.failed == 1
        engine.core.live.clear()
    assert len(errors_of(caplog)) == 1


def test_abandoned_claims_are_released_after_an_unexpected_error(caplog: pytest.LogCaptureFixture) -> None:
    driver = Faulty()
    with Engine(Backend("memory", MemoryStore(), driver)) as engine:
        permit = engine.claim(command("key-1"))
        assert isinstance(permit, Permit)
        engine.core.live.clear()
        released = threading.Event()
        done = engine._upkeep._abandoned.forget_released

        def note(*args: Any) -> None:
            done(*args)
            released.set()

        engine._upkeep._abandoned.forget_released = note  # type: ignore[assignment,method-assign]
        driver.failures = 2
        engine._upkeep.abandon(permit.claim)
        assert released.wait(20)
        with suppress(StoreTimeout):
            assert isinstance(engine.claim(command("key-1")), Permit)
        engine.core.live.clear()
    assert len(errors_of(caplog)) == 1
