"""What is simulated is what a store sees: a crash tells nothing more, a moved clock is moved back."""

from __future__ import annotations

import asyncio
import gc
import warnings
from pathlib import Path

import pytest

from semel import Answer, AsyncEngine, Engine, Policy, Scope
from semel.errors import InProgressError, OutcomeUnknownError
from semel.policy import Command
from semel.testing.clock import SettableClock
from semel.testing.faults import Crash, Faults, faulty_memory
from semel.testing.idempotent import Case, WsgiTarget
from semel.testing.idempotent.failing import Place, dying, impatient, movable
from semel.testing.idempotent.targets.target import Fate
from tests.testing_plugin import good
from tests.testing_plugin.good import Provider

COMMAND = Command(Scope("acme", "alice", "pay"), "key-1", bytes(32), "v1", Policy())


def test_a_crash_leaves_an_open_record_and_no_live_permit() -> None:
    ran: list[int] = []
    with Engine.connect("memory://") as engine:
        for place, times in ((Place.BEFORE_THE_HANDLER, 0), (Place.BEFORE_THE_SETTLE, 1)):
            command = Command(COMMAND.scope, place.name, bytes(32), "v1", Policy())
            with dying((engine,), place) as struck, pytest.raises(Crash):
                engine.run(command, lambda permit: ran.append(1) or Answer(200, (), b""))  # type: ignore[func-returns-value]
            assert struck.times == 1
            assert len(ran) == times
            assert engine.core.live == {}
            with impatient((engine,)), pytest.raises(InProgressError):
                engine.run(command, lambda permit: Answer(200, (), b""))
        assert "claim" not in vars(engine)
        assert "settle" not in vars(engine)
        assert engine.core.waiters_max == 1000


def test_a_moved_clock_is_moved_back(tmp_path: Path) -> None:
    for url in ("memory://", f"sqlite:///{tmp_path}/a.db"):
        with Engine.connect("memory://"):
            engine = Engine.connect(url)
            engine.migrate()
            engine.open()
        with dying((engine,), Place.BEFORE_THE_HANDLER), pytest.raises(Crash):
            engine.run(COMMAND, lambda permit: Answer(200, (), b""))
        with movable((engine,)) as clocks, impatient((engine,)):
            assert clocks is not None
            with pytest.raises(InProgressError):
                engine.run(COMMAND, lambda permit: Answer(200, (), b""))
            clocks.advance(31)
            with pytest.raises(OutcomeUnknownError):
                engine.run(COMMAND, lambda permit: Answer(200, (), b""))
        other = Command(COMMAND.scope, "key-2", bytes(32), "v1", Policy())
        engine.run(other, lambda permit: Answer(200, (), b""))
        assert engine.run(other, lambda permit: Answer(200, (), b"")).replayed
        engine.close()


def test_a_settable_clock_is_moved_itself() -> None:
    clock = SettableClock()
    engine = Engine(faulty_memory(clock, Faults()).backend)
    before = clock()
    with movable((engine,)) as clocks:
        assert clocks is not None
        clocks.advance(5)
    assert clock() == before + 5_000_000


def test_without_an_engine_no_clock_can_be_moved() -> None:
    with movable(()) as clocks:
        assert clocks is None


def test_an_async_crash_reaches_the_caller() -> None:
    async def main() -> None:
        async def handler(permit: object) -> Answer:
            return Answer(200, (), b"")

        async with AsyncEngine.connect("memory://") as engine:
            with dying((engine,), Place.BEFORE_THE_SETTLE), pytest.raises(Crash):
                await engine.run(COMMAND, handler)
            assert engine.core.live == {}

    asyncio.run(main())


def test_wsgi_leaves_no_open_file_after_a_failed_claim(tmp_path: Path) -> None:
    """A store that is not migrated refuses the claim: the body that was kept for it must be let go."""
    engine = Engine.connect(f"sqlite:///{tmp_path}/never.db")
    target = WsgiTarget(good.wsgi_app(engine, Provider()))
    case = Case(request="POST /payments", json={"amount": 1}, effects=[])

    async def main() -> None:
        await target.open()
        reply = await target.attempt(case.first(), "8e03978e-40d5-43dd-bc93-6894a57f9324", Fate.ANSWERED)
        await target.close()
        assert reply.status == 503

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert [str(each.message) for each in seen if issubclass(each.category, ResourceWarning)] == []
