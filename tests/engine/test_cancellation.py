"""Callers that go away, handlers that are cancelled, engines that drain: what was begun is finished."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from semel import Answer, AsyncEngine, Permit, Policy
from semel.core.model import InProgress, Replay, Settled, State
from semel.core.outcomes import Succeeded
from semel.engine import renewal as upkeep
from semel.engine.result import Result
from semel.errors import InProgressError, StoreTimeout, StoreUnavailable
from semel.stores.backend import Backend
from semel.stores.memory.store import MemoryStore
from semel.testing.clock import SettableClock
from semel.testing.faults import Fault, Faults, Kind, When, faulty_sqlite
from tests.engine.drivers import FailingReplies, SlowBatches, SlowReplies, memory, sqlite
from tests.engine.shells import MADE, Ledger, command

TURNS_MAX = 400


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def open_engine(backend: Backend) -> AsyncEngine:
    engine = AsyncEngine(backend)
    await engine.migrate()
    await engine.open()
    return engine


@pytest.mark.parametrize(
    ("effects", "store"),
    [
        *((effects, store) for effects in ("external", "idempotent") for store in ("sqlite", "memory", "batches")),
        ("atomic", "sqlite"),
    ],
)
def test_a_caller_cancelled_at_any_turn_of_the_loop(effects: str, store: str, tmp_path: Path) -> None:
    """Whenever it goes: the handler ran to its end and its answer is stored, or it never began and the key is free.

    The loop over turns ends at the first run that was over before it was cancelled.
    """
    policy = Policy.of(effects=effects)

    async def cancelled_after(count: int) -> bool:
        if store == "batches":
            backend = Backend("memory", MemoryStore(), SlowBatches())
        else:
            backend = memory() if store == "memory" else sqlite(tmp_path / f"{count}.db")
        engine = await open_engine(backend)
        ledger = Ledger()

        async def handler(permit: Permit) -> Answer:
            await turns(3)
            ledger.charge(permit.key_for("charge"))
            await turns(3)
            return MADE

        caller = asyncio.ensure_future(engine.run(command(policy=policy), handler, wait_seconds=0))
        await turns(count)
        if caller.done():
            await engine.close()
            return True
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await engine.close()  # waits for what was begun
        assert (engine.core.live, engine.core.entering) == ({}, set())
        again = await open_engine(backend)
        result = await again.run(command(policy=policy), handler, wait_seconds=0)
        assert result.answer == MADE
        assert len(ledger.calls) == 1
        await again.close()
        return False

    for count in range(TURNS_MAX):
        if asyncio.run(cancelled_after(count)):
            assert count > 6  # it was cancelled inside the handler, too
            return
    pytest.fail("never over")


def test_a_settlement_survives_its_caller() -> None:
    """Cancelled while the reply is on its way: the write stays, and the next attempt replays."""

    async def scenario() -> None:
        driver = SlowReplies()
        engine = await open_engine(Backend("slow", MemoryStore(), driver))
        permit = await engine.claim(command())
        assert isinstance(permit, Permit)
        driver.hold = asyncio.Event()
        settling = asyncio.ensure_future(engine.settle(permit, Succeeded(MADE)))
        await turns(2)
        settling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await settling
        driver.hold.set()
        assert isinstance(await engine.claim(command()), Replay)
        await engine.close()

    asyncio.run(scenario())


def test_a_settlement_whose_caller_is_gone_is_repeated_when_the_store_fails() -> None:
    """Cancelled, and then the store did not take it: it is written all the same."""

    async def scenario() -> None:
        driver = FailingReplies()
        engine = await open_engine(Backend("failing", MemoryStore(), driver))
        permit = await engine.claim(command())
        assert isinstance(permit, Permit)
        driver.fail = asyncio.Event()
        settling = asyncio.ensure_future(engine.settle(permit, Succeeded(MADE)))
        await turns(2)
        settling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await settling
        failing, driver.fail = driver.fail, None
        failing.set()
        await asyncio.wait_for(engine.close(), timeout=20)
        [row] = driver.inner._table.rows()
        assert row.state == State.SUCCEEDED

    asyncio.run(scenario())


def test_closing_does_not_wait_for_a_claim_that_never_landed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The release cannot be confirmed: it is retried once, and then the lease runs out."""
    monkeypatch.setattr(upkeep, "ABANDON_EVERY_SECONDS", 0)

    async def scenario() -> None:
        faults = Faults(Fault(Kind.TIMEOUT, When.BEFORE, 6))  # at the claim's commit
        faults.rest()
        engine = await open_engine(faulty_sqlite(str(tmp_path / "semel.db"), SettableClock(), faults).backend)
        faults.resume()
        with pytest.raises(StoreTimeout):
            await engine.claim(command())
        await asyncio.wait_for(engine.close(), timeout=20)

    asyncio.run(scenario())


@pytest.mark.parametrize("effects", ["external", "idempotent"])
def test_a_renewal_that_crosses_the_settlement_takes_nothing_back(effects: str) -> None:
    """The settlement is written and its reply on its way; the renewal gets "not yours any more".

    That is no loss: the caller gets its answer, and no handler is cancelled.
    """

    async def scenario() -> None:
        driver = SlowReplies()
        engine = await open_engine(Backend("slow", MemoryStore(), driver))
        held: list[Permit] = []

        async def handler(permit: Permit) -> Answer:
            held.append(permit)
            driver.hold = asyncio.Event()
            return MADE

        caller = asyncio.ensure_future(engine.run(command(policy=Policy.of(effects=effects)), handler))
        await turns(10)
        assert not caller.done()
        [permit] = held
        row = driver.inner._table.row(permit.grant.id)
        assert row is not None
        assert row.state == State.SUCCEEDED  # written; the reply is on its way
        permit.renewed_monotonic -= 3600
        assert driver.hold is not None
        renewing = asyncio.ensure_future(engine._upkeep.renew())
        await turns(2)
        engine.core.note_renewals([permit], [False])  # what the renewal's own reply says, and it is there first
        driver.hold.set()
        result = await caller
        assert isinstance(result, Result)
        assert result.answer == MADE
        assert not permit.lost
        await renewing
        await engine.close()

    asyncio.run(scenario())


def test_a_superseded_idempotent_handler_is_cancelled_and_an_external_one_is_not() -> None:
    """The handler lost the record; running on would only repeat effects that another attempt makes now."""

    async def scenario(effects: str) -> tuple[bool, State]:
        clock = SettableClock()
        engine = await open_engine(memory(clock))
        policy = Policy.of(effects=effects)
        begun, go_on = asyncio.Event(), asyncio.Event()
        held: list[Permit] = []

        async def slow(permit: Permit) -> Answer:
            held.append(permit)
            begun.set()
            await go_on.wait()
            return MADE

        caller = asyncio.ensure_future(engine.run(command(policy=policy), slow))
        await begun.wait()
        clock.advance(seconds=31)
        other = await engine.claim(command(policy=policy))
        held[0].renewed_monotonic -= 3600
        await engine._upkeep.renew()
        await turns(5)
        cancelled = caller.done()  # its handler was
        go_on.set()
        if cancelled:
            with pytest.raises(InProgressError):
                await caller
            assert isinstance(other, Permit)
            assert await engine.settle(other, Succeeded(MADE)) == Settled()
        else:
            assert (await caller).answer == MADE
        row = engine.backend.driver._table.row(held[0].grant.id)
        await engine.close()
        return cancelled, State(row.state)

    assert asyncio.run(scenario("idempotent")) == (True, State.SUCCEEDED)
    assert asyncio.run(scenario("external")) == (False, State.SUCCEEDED)


def test_a_cancelled_handler_reports_its_doubt() -> None:
    """Its own cancellation is an exception like any other: EXTERNAL is UNKNOWN, with its reason."""

    async def scenario() -> None:
        engine = await open_engine(memory())

        async def handler(permit: Permit) -> Answer:
            raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await engine.run(command(), handler)
        [row] = engine.backend.driver._table.rows()
        assert (row.state, row.doubt) == (State.UNKNOWN, "error:CancelledError")
        await engine.close()

    asyncio.run(scenario())


def test_a_draining_engine_grants_nothing_and_waits_for_running_commands() -> None:
    async def scenario() -> None:
        engine = await open_engine(memory())
        permit = await engine.claim(command())
        assert isinstance(permit, Permit)
        assert not await engine.drain(0)  # it still lives
        with pytest.raises(StoreUnavailable, match="shutting down"):
            await engine.claim(command("other"))
        draining = asyncio.ensure_future(engine.drain(30))
        await turns(3)
        assert not draining.done()
        assert await engine.settle(permit, Succeeded(MADE)) == Settled()
        assert await draining
        await engine.close()

    asyncio.run(scenario())


def test_a_waiter_that_is_cancelled_leaves_its_place() -> None:
    async def scenario() -> None:
        engine = await open_engine(memory())
        assert isinstance(await engine.claim(command()), Permit)
        waiting = asyncio.ensure_future(engine.claim(command(), wait_seconds=30))
        await turns(5)
        assert engine.core.waiting == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert engine.core.waiting == 0
        assert engine.core.waiting_by_caller == {}
        assert engine.core.wakers == {}
        assert isinstance(await engine.claim(command(), wait_seconds=0), InProgress)
        await engine.close()

    asyncio.run(scenario())


def test_a_cancelled_claim_in_a_group_is_released(tmp_path: Path) -> None:
    """SCHEDULES 1.9 d: queued with others and cancelled before its reply: no claim without an owner is left."""

    async def scenario() -> None:
        engine = await open_engine(sqlite(tmp_path / "semel.db"))
        callers = [asyncio.ensure_future(engine.claim(command(str(n)))) for n in range(5)]
        await turns(1)  # all are queued for one commit
        callers[2].cancel()
        permits = await asyncio.gather(*callers, return_exceptions=True)
        assert [type(permit).__name__ for permit in permits] == ["Permit"] * 2 + ["CancelledError"] + ["Permit"] * 2
        for permit in permits:
            if isinstance(permit, Permit):
                await engine.settle(permit, Succeeded(MADE))
        await engine.close()
        again = await open_engine(sqlite(tmp_path / "semel.db"))
        assert isinstance(await again.claim(command("2")), Permit)
        await again.close()

    asyncio.run(scenario())
