"""Leases of every length are renewed to the end, a drain waits for all, and no caller gets a wrong outcome."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any, TypeVar

import pytest

from semel import Answer, AsyncEngine, Command, Engine, Permit, Policy
from semel.atomic.flow import settle_unit
from semel.core.command_flow import make_settlement
from semel.core.decide import decide
from semel.core.flow import MakeFlow
from semel.core.model import Proceed, Replay, Resolution, Resolved, Settled, Superseded
from semel.core.outcomes import Released, Succeeded
from semel.core.requests import Commit, Perform, Within
from semel.errors import InProgressError, SchemaError, StoreTimeout, StoreUnavailable
from semel.stores.backend import Backend
from semel.stores.memory.driver import LocalDriver
from semel.stores.memory.store import MemoryStore
from semel.stores.sqlite.join import JoinedUnit
from semel.testing.attempts import attempt
from semel.testing.clock import SettableClock
from tests.engine.drivers import SlowReplies, memory, sqlite
from tests.engine.shells import MADE, command

T = TypeVar("T")
OUT_OF_STOCK = Answer(409, (), b"out of stock")


async def open_engine(backend: Backend) -> AsyncEngine:
    engine = AsyncEngine(backend)
    await engine.migrate()
    await engine.open()
    return engine


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_short_lease_is_looked_at_in_its_own_time() -> None:
    """The next look had been set by a much longer lease: the short one would have lapsed by then."""

    async def scenario() -> None:
        engine = await open_engine(memory())
        loop = asyncio.get_running_loop()
        for lease in (300.0, 3.0, 30.0):
            policy = Policy(lease_seconds=lease, deadline_seconds=600)
            assert isinstance(await engine.claim(command(str(lease), policy=policy)), Permit)
        beat = engine._upkeep._beat
        assert beat is not None
        assert not beat.cancelled()
        assert beat.when() <= loop.time() + 3.0 / 3
        await engine.close()

    asyncio.run(scenario())


def test_a_closing_engine_renews_the_leases_of_the_handlers_that_it_waits_for() -> None:
    async def scenario() -> None:
        engine = await open_engine(memory())
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def handler(permit: Permit) -> Answer:
            begun.set()
            await go_on.wait()
            return MADE

        running = asyncio.ensure_future(engine.run(command(), handler))
        await begun.wait()
        closing = asyncio.ensure_future(engine.close())
        await turns(5)
        beat = engine._upkeep._beat
        assert beat is not None
        assert not beat.cancelled()
        go_on.set()
        assert (await running).answer == MADE
        await closing
        assert engine._upkeep._beat is None

    asyncio.run(scenario())


class AwayForAMoment:
    """A memory store whose tables are missing while ``away`` is set, as a file's are in the middle of a restore."""

    def __init__(self) -> None:
        self.inner = LocalDriver()
        self.away = False
        self.refused = threading.Event()
        self.performed = threading.Event()

    def run(self, make: MakeFlow[T]) -> T:
        if self.away:
            self.refused.set()
            raise SchemaError("this database has no Semel tables")
        self.performed.set()
        return self.inner.run(make)

    def close(self) -> None:
        return None


def test_renewals_continue_after_a_store_outage() -> None:
    """One renewal met a store without tables; the thread that renews all leases must not die of it."""
    driver = AwayForAMoment()
    engine = Engine(Backend("away", MemoryStore(), driver))
    engine.migrate()
    permit = engine.claim(command(policy=Policy(lease_seconds=1, deadline_seconds=60)))
    assert isinstance(permit, Permit)
    driver.away = True
    permit.renewed_monotonic -= 3600
    engine._upkeep.watch()
    assert driver.refused.wait(10)
    driver.away = False
    driver.performed.clear()
    engine._upkeep.watch()
    assert driver.performed.wait(10)
    assert isinstance(engine.settle(permit, Succeeded(MADE)), Settled)
    engine.close()


def test_a_drain_waits_for_a_claim_on_its_way() -> None:
    """It was asked for before; its permit comes after, and its handler is not to be killed."""

    async def scenario() -> None:
        driver = SlowReplies()
        engine = await open_engine(Backend("slow", MemoryStore(), driver))
        driver.hold = asyncio.Event()
        claiming = asyncio.ensure_future(engine.claim(command()))
        await turns(2)
        draining = asyncio.ensure_future(engine.drain(60))
        await turns(5)
        assert not draining.done()
        driver.hold.set()
        permit = await claiming
        assert isinstance(permit, Permit)
        await turns(5)
        assert not draining.done()
        await engine.settle(permit, Succeeded(MADE))
        assert await draining
        await engine.close()

    asyncio.run(scenario())


def test_a_draining_engine_grants_nothing_to_waiters() -> None:
    async def scenario() -> None:
        engine = await open_engine(memory())
        permit = await engine.claim(command())
        assert isinstance(permit, Permit)
        waiting = asyncio.ensure_future(engine.claim(command(), wait_seconds=60))
        await turns(5)
        draining = asyncio.ensure_future(engine.drain(60))
        await turns(5)
        await engine.settle(permit, Released("NothingHappened", proven=True))  # the key is free again
        with pytest.raises(StoreUnavailable, match="shutting down"):
            await waiting
        assert await draining
        assert engine.core.entering == set()
        await engine.close()

    asyncio.run(scenario())


def test_a_joined_command_does_not_disturb_its_waiter(tmp_path: Path) -> None:
    """Both have one key: the joined one holds the file, the other waits for it and is given its answer."""

    async def scenario() -> None:
        path = tmp_path / "app.db"
        engine = await open_engine(sqlite(path))
        db = sqlite3.connect(path)
        what = command(policy=Policy.of(effects="atomic"))
        async with engine.atomic(db, what) as once:
            waiting = asyncio.ensure_future(engine.claim(what, wait_seconds=0))
            await turns(1)  # it has found nothing, and asks for the file
            once.answer = MADE
        db.commit()
        met = await waiting
        assert isinstance(met, Replay)
        assert met.answer == MADE
        assert engine.core.running == {}
        db.close()
        await engine.close()

    asyncio.run(scenario())


def test_a_superseded_holder_gets_the_stored_outcome_and_is_not_cancelled() -> None:
    """The handler was cancelled, but its caller was not: a CancelledError would end the caller silently."""

    async def scenario() -> None:
        clock = SettableClock()
        engine = await open_engine(memory(clock))
        policy = Policy.of(effects="idempotent")
        begun = asyncio.Event()
        held: list[Permit] = []

        async def hangs(permit: Permit) -> Answer:
            held.append(permit)
            begun.set()
            await asyncio.Event().wait()
            return MADE

        async def one(settled: bool) -> None:
            begun.clear()
            held.clear()
            what = command(str(settled), policy=policy)
            caller = asyncio.ensure_future(engine.run(what, hangs))
            await begun.wait()
            clock.advance(seconds=31)
            other = await engine.claim(what)
            assert isinstance(other, Permit)
            if settled:
                assert await engine.settle(other, Succeeded(MADE)) == Settled()
            held[0].renewed_monotonic -= 3600
            await engine._upkeep.renew()
            if settled:
                result = await caller
                assert (result.answer, result.replayed) == (MADE, True)
            else:
                with pytest.raises(InProgressError):
                    await caller

        await one(settled=True)
        await one(settled=False)
        await engine.close()

    asyncio.run(scenario())


def test_a_commit_that_cannot_be_read_back_is_not_called_undone() -> None:
    """ "Unavailable" says that nothing was done, and here that may be untrue: the commit may have taken effect."""
    claim = attempt(policy=Policy.of(effects="atomic"))
    verdict = decide(None, claim, 1)
    assert isinstance(verdict, Proceed)
    outcome, unit, store = (
        Succeeded(MADE),
        JoinedUnit(None, lambda text, params: ([], 0), SettableClock()),
        MemoryStore(),
    )
    flow = settle_unit(store, unit, claim, verdict.grant, outcome, make_settlement(verdict.grant, outcome))
    assert isinstance(next(flow), Perform)  # is it visible from outside?
    assert isinstance(flow.send([None]), Within)  # no: settle it inside
    assert isinstance(flow.send([Settled()]), Commit)
    assert isinstance(flow.throw(StoreTimeout("disk I/O error")), Perform)  # was it committed?
    with pytest.raises(StoreTimeout, match="could not be read back"):
        flow.throw(StoreUnavailable("disk I/O error"))


def test_a_waiter_whose_loop_is_gone_does_not_harm_a_settlement() -> None:
    engine = AsyncEngine(memory())
    loop = asyncio.new_event_loop()
    loop.run_until_complete(engine.migrate())
    permit = loop.run_until_complete(engine.claim(command()))
    assert isinstance(permit, Permit)
    waiting = loop.create_task(engine.claim(command(), wait_seconds=60))
    loop.run_until_complete(turns(5))
    assert len(engine.core.wakers) == 1
    loop.close()

    async def elsewhere() -> None:
        assert await engine.settle(permit, Succeeded(MADE)) == Settled()

    asyncio.run(elsewhere())
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]  # that it is pending is the point


def recast(effects: str) -> tuple[Command, Command]:
    """A command, and the same one by a process that makes fingerprints by another recipe and knows the former."""
    former = command(policy=Policy.of(effects=effects))
    known = {former.recipe: former.fingerprint}
    return former, Command(former.scope, former.key, bytes(32), "2.tests", former.policy, known.get)


def test_a_refusal_of_a_record_by_a_former_recipe_is_stored(tmp_path: Path) -> None:
    """The business writes are rolled back, and the refusal is stored by the recipe of the record that is there."""
    engine = Engine(sqlite(tmp_path / "app.db"))
    engine.migrate()
    former, latter = recast("atomic")
    idempotent = Command(
        former.scope, former.key, former.fingerprint, former.recipe, Policy.of(effects="idempotent"), None
    )
    permit = engine.claim(idempotent)
    assert isinstance(permit, Permit)
    assert engine.settle(permit, Released("NothingHappened", proven=True)) == Settled()

    def refuses(permit: Permit) -> Answer:
        return OUT_OF_STOCK

    for replayed in (False, True):
        result = engine.run(latter, refuses)
        assert (result.answer, result.replayed) == (OUT_OF_STOCK, replayed)
    engine.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_settled_record_is_read_by_its_own_recipe(mode: str) -> None:
    """A refused settlement is answered with the record's own answer, under any recipe."""
    former, latter = recast("external")
    backend = memory()
    run = backend.driver.run

    def settled_by_an_operator(permit: Permit) -> None:
        resolution = Resolution(permit.grant.id, permit.grant.fence, True, MADE, "operator", "seen", forced=True)
        clock: Any = backend.driver._clock
        clock.advance(seconds=31)
        assert isinstance(run(lambda: backend.store.resolve(resolution)), Resolved)

    def free(engine_settle: Any, permit: Any) -> Any:
        assert isinstance(permit, Permit)
        return engine_settle(permit, Released("NothingHappened", proven=True))

    if mode == "sync":
        engine = Engine(backend)
        engine.migrate()
        assert free(engine.settle, engine.claim(former)) == Settled()
        permit = engine.claim(latter)
        assert isinstance(permit, Permit)
        settled_by_an_operator(permit)
        assert isinstance(engine.settle(permit, Succeeded(OUT_OF_STOCK)), Superseded)
        met = engine.reread(permit)
        engine.close()
    else:

        async def scenario() -> Any:
            engine = await open_engine(backend)
            assert await free(engine.settle, await engine.claim(former)) == Settled()
            permit = await engine.claim(latter)
            assert isinstance(permit, Permit)
            settled_by_an_operator(permit)
            assert isinstance(await engine.settle(permit, Succeeded(OUT_OF_STOCK)), Superseded)
            met = await engine.reread(permit)
            await engine.close()
            return met

        met = asyncio.run(scenario())
    assert isinstance(met, Replay)
    assert met.answer == MADE
