"""Many duplicates of one key: one effect, one answer for all, bounded waiting, no polling within a process."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Engine, Permit, Policy
from semel.core import command_flow as commands
from semel.core.flow import perform
from semel.core.model import InProgress, Replay
from semel.core.outcomes import Succeeded
from semel.core.requests import Attempt, Elapsed, Jitter, PauseToLook
from semel.engine.result import Result
from semel.errors import InProgressError
from semel.stores.backend import Backend
from semel.telemetry import Counting
from semel.testing.clock import SettableClock
from tests.engine.drivers import memory, sqlite
from tests.engine.shells import MADE, Ledger, Mode, Shell, command, until

CROWD = 20
STORE_CLAIM = ("store_call_seconds", "claim")
PATIENCE_SECONDS = 30  # a bound for a test that hangs, not a pause


def backend_of(store: str, path: Path) -> Backend:
    return memory() if store == "memory" else sqlite(path / "semel.db")


PLACES = [  # memory declares that it cannot hold a record and the handler's writes in one transaction
    *(("memory", effects) for effects in ("external", "idempotent")),
    *(("sqlite", effects) for effects in ("external", "idempotent", "atomic")),
]


@pytest.mark.parametrize(("store", "effects"), PLACES)
def test_twenty_tasks_released_by_one_latch(store: str, effects: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with await ready(backend_of(store, tmp_path)) as engine:
            ledger, latch = Ledger(), asyncio.Event()

            async def handler(permit: Permit) -> Answer:
                ledger.charge(permit.key_for("charge"))
                await until(lambda: engine.core.waiting == CROWD - 1)  # all the others wait
                return MADE

            async def caller() -> Result:
                await latch.wait()
                return await engine.run(command(policy=Policy.of(effects=effects)), handler, wait_seconds=30)

            crowd = [asyncio.ensure_future(caller()) for _ in range(CROWD)]
            await asyncio.sleep(0)
            latch.set()
            check_crowd(await asyncio.wait_for(asyncio.gather(*crowd), PATIENCE_SECONDS), ledger)
            assert engine.core.waiting == 0

    asyncio.run(scenario())


async def ready(backend: Backend, **options: Any) -> AsyncEngine:
    engine = AsyncEngine(backend, **options)
    await engine.migrate()
    return engine


@pytest.mark.parametrize("effects", ["external", "idempotent", "atomic"])
def test_twenty_threads_released_by_one_latch(effects: str, tmp_path: Path) -> None:
    engine = Engine(sqlite(tmp_path / "semel.db"))
    engine.migrate()
    with engine, ThreadPoolExecutor(CROWD) as threads:
        ledger, latch, gathered = Ledger(), threading.Barrier(CROWD), threading.Event()

        def handler(permit: Permit) -> Answer:
            ledger.charge(permit.key_for("charge"))
            for _ in range(PATIENCE_SECONDS * 1000):
                if engine.core.waiting == CROWD - 1:
                    break
                gathered.wait(0.001)
            return MADE

        def caller(_: int) -> Result:
            latch.wait()
            return engine.run(command(policy=Policy.of(effects=effects)), handler, wait_seconds=PATIENCE_SECONDS)

        check_crowd(list(threads.map(caller, range(CROWD))), ledger)
        assert engine.core.waiting == 0


def check_crowd(results: list[Result], ledger: Ledger) -> None:
    assert len(ledger.calls) == 1
    assert [result.answer for result in results] == [MADE] * CROWD
    assert len({result.operation_id for result in results}) == 1
    assert sorted(result.replayed for result in results) == [False] + [True] * (CROWD - 1)


def test_a_waiter_is_woken_and_does_not_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """With polling made hourly, the waiter still has its answer at once: two claims, no more."""
    monkeypatch.setattr(commands, "poll_seconds", lambda asked, jitter: 3600.0)

    async def scenario() -> None:
        counting = Counting()
        async with await ready(memory(), observer=counting) as engine:
            finish = asyncio.Event()

            async def handler(permit: Permit) -> Answer:
                await finish.wait()
                return MADE

            policy = Policy(lease_seconds=3600, deadline_seconds=7200)
            first = asyncio.ensure_future(engine.run(command(policy=policy), handler))
            await asyncio.sleep(0)
            second = asyncio.ensure_future(engine.run(command(policy=policy), handler, wait_seconds=3600))
            await until(lambda: bool(engine.core.wakers))
            finish.set()
            results = await asyncio.wait_for(asyncio.gather(first, second), PATIENCE_SECONDS)
            assert [result.replayed for result in results] == [False, True]
        claims = sum(n for (event, labels), n in counting.counts.items() if (event, labels[-1]) == STORE_CLAIM)
        assert claims == 3  # the first caller's one, the waiter's two

    asyncio.run(scenario())


def test_a_waiting_thread_is_woken_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(commands, "poll_seconds", lambda asked, jitter: 3600.0)
    policy = Policy(lease_seconds=3600, deadline_seconds=7200)
    engine = Engine(sqlite(tmp_path / "semel.db"))
    engine.migrate()
    with engine, ThreadPoolExecutor(1) as threads:
        permit = engine.claim(command(policy=policy))
        assert isinstance(permit, Permit)
        waiting = threads.submit(engine.run, command(policy=policy), lambda permit: MADE, wait_seconds=3600)
        pause = threading.Event()
        for _ in range(PATIENCE_SECONDS * 1000):
            if engine.core.wakers:
                break
            pause.wait(0.001)
        engine.settle(permit, Succeeded(MADE))
        assert waiting.result(PATIENCE_SECONDS).replayed


def test_a_waiter_takes_over_what_lapsed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks again when the lease must have been renewed: a waiter takes over an IDEMPOTENT command."""
    monkeypatch.setattr(commands, "poll_seconds", lambda asked, jitter: 0.001)

    async def scenario() -> None:
        clock = SettableClock()
        policy = Policy(effects="idempotent")
        async with await ready(memory(clock)) as engine:
            assert isinstance(await engine.claim(command(policy=policy)), Permit)  # and its holder is gone

            async def handler(permit: Permit) -> Answer:
                assert permit.attempt == 2
                return MADE

            waiting = asyncio.ensure_future(engine.run(command(policy=policy), handler, wait_seconds=30))
            await until(lambda: bool(engine.core.wakers))
            clock.advance(seconds=31)
            assert (await asyncio.wait_for(waiting, PATIENCE_SECONDS)).answer == MADE

    asyncio.run(scenario())


def test_waiters_are_bounded_in_number_for_all_and_for_each_caller() -> None:
    """A caller for whom no place is left gets its answer at once, with any budget."""

    async def scenario() -> None:
        async with await ready(memory(), waiters_max=3, waiters_per_caller_max=2) as engine:
            permits = [await engine.claim(command(caller=caller)) for caller in ("alice", "bob", "carol")]

            async def never(permit: Permit) -> Answer:
                raise AssertionError("it is running already")

            def wait(caller: str) -> asyncio.Future[Result]:
                return asyncio.ensure_future(engine.run(command(caller=caller), never, wait_seconds=3600))

            waiting = [wait("alice"), wait("alice")]
            await asyncio.sleep(0)
            with pytest.raises(InProgressError):
                await wait("alice")  # alice's places are taken, the process has one left
            waiting.append(wait("bob"))
            await asyncio.sleep(0)
            assert engine.core.waiting == 3
            with pytest.raises(InProgressError) as caught:
                await wait("carol")
            assert caught.value.retry_after_seconds == 1  # of the lease 30 s are left
            for permit in permits:
                assert isinstance(permit, Permit)
                await engine.settle(permit, Succeeded(MADE))
            results = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_SECONDS)
            assert all(result.replayed for result in results)
            assert (engine.core.waiting, engine.core.waiting_by_caller) == (0, {})

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_retry_after_is_short_for_a_duplicate_that_has_not_waited(mode: Mode) -> None:
    policy = Policy(lease_seconds=3600, deadline_seconds=7200)
    with closing(Shell(mode, memory(SettableClock()))) as shell:
        shell.open()
        permit = shell.permit(command(policy=policy))
        with pytest.raises(InProgressError) as caught:
            shell.run(command(policy=policy), lambda permit: MADE)
        assert caught.value.retry_after_seconds == 1
        shell.settle(permit)


@pytest.mark.parametrize(("lease", "waits", "told"), [(30, 0.5, 1), (30, 4, 4), (3, 4, 3)])
def test_retry_after_is_as_long_as_the_duplicate_has_waited(lease: int, waits: float, told: int) -> None:
    """At the end of the lease at the latest, when another attempt may take over. A slow command is polled rarely."""
    with closing(Shell("sync", memory())) as shell:
        claimed = shell.engine.core.attempt(command())
    running, passed = InProgress(bytes(16), lease * 1_000_000), [0.0]

    def reply(needed: Any) -> Any:
        if isinstance(needed, PauseToLook):
            passed.append(needed.seconds)
        return {Elapsed: sum(passed), Jitter: 0.5, PauseToLook: True, Attempt: running}[type(needed)]

    verdict = perform(commands.await_verdict(claimed, running, waits), reply)
    assert isinstance(verdict, InProgress)
    assert verdict.retry_us == told * 1_000_000


def test_without_a_budget_no_duplicate_waits() -> None:
    async def scenario() -> None:
        async with await ready(memory()) as engine:
            assert isinstance(await engine.claim(command()), Permit)
            with pytest.raises(InProgressError):
                await engine.run(command(policy=Policy(wait_seconds=0)), lambda permit: None)  # type: ignore[arg-type,return-value]

    asyncio.run(scenario())


WAITERS = 100
LOOK_EVERY_SECONDS = 0.02
HAND_OVERS_MAX = 15  # another waiter looks at once where the one that looked has gone


def looks_max(began: float) -> float:
    """How often one waiter may have looked since then, however long a busy machine took: a hundred look more often."""
    return (time.monotonic() - began) / LOOK_EVERY_SECONDS + HAND_OVERS_MAX


def claims_of(counting: Counting) -> int:
    return int(sum(n for (event, labels), n in counting.counts.items() if (event, labels[-1]) == STORE_CLAIM))


def test_one_task_polls_for_all_waiters_of_a_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(commands, "poll_seconds", lambda asked, jitter: LOOK_EVERY_SECONDS)

    async def scenario() -> None:
        counting = Counting()
        async with (
            await ready(sqlite(tmp_path / "semel.db")) as holder,
            await ready(sqlite(tmp_path / "semel.db"), observer=counting) as engine,
        ):
            permit = await holder.claim(command())
            assert isinstance(permit, Permit)
            began = time.monotonic()
            crowd = [asyncio.ensure_future(engine.claim(command(), wait_seconds=0.5)) for _ in range(WAITERS)]
            found = await asyncio.wait_for(asyncio.gather(*crowd), PATIENCE_SECONDS)
            assert {type(each) for each in found} == {InProgress}
            assert claims_of(counting) <= WAITERS + looks_max(began)
            # What another process settles is seen by the one that looks, and then by all.
            crowd = [asyncio.ensure_future(engine.claim(command(), wait_seconds=30)) for _ in range(WAITERS)]
            await until(lambda: len(engine.core.wakers.get(permit.claim.id, ())) == WAITERS)
            before, began = claims_of(counting), time.monotonic()
            await holder.settle(permit, Succeeded(MADE))
            found = await asyncio.wait_for(asyncio.gather(*crowd), PATIENCE_SECONDS)
            assert {type(each) for each in found} == {Replay}
            assert claims_of(counting) - before <= WAITERS + looks_max(began)
            assert (engine.core.lookers, engine.core.wakers, engine.core.waiting) == ({}, {}, 0)

    asyncio.run(scenario())


def test_one_thread_polls_for_all_waiters_of_a_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(commands, "poll_seconds", lambda asked, jitter: LOOK_EVERY_SECONDS)
    counting = Counting()
    holder, engine = Engine(sqlite(tmp_path / "semel.db")), Engine(sqlite(tmp_path / "semel.db"), observer=counting)
    holder.migrate()
    with holder, engine, ThreadPoolExecutor(CROWD) as threads:
        permit = holder.claim(command())
        assert isinstance(permit, Permit)
        began = time.monotonic()
        found = list(threads.map(lambda _: engine.claim(command(), wait_seconds=0.5), range(CROWD)))
        assert {type(each) for each in found} == {InProgress}
        assert claims_of(counting) <= CROWD + looks_max(began)
        crowd = [threads.submit(engine.claim, command(), wait_seconds=30) for _ in range(CROWD)]
        pause = threading.Event()
        for _ in range(PATIENCE_SECONDS * 1000):
            if len(engine.core.wakers.get(permit.claim.id, ())) == CROWD:
                break
            pause.wait(0.001)
        holder.settle(permit, Succeeded(MADE))
        assert {type(each.result(PATIENCE_SECONDS)) for each in crowd} == {Replay}
        assert (engine.core.lookers, engine.core.wakers, engine.core.waiting) == ({}, {}, 0)


def test_another_waiter_polls_if_the_first_is_cancelled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The waiter that looks is cancelled, then the loop of one that looks is closed: the others go on."""
    monkeypatch.setattr(commands, "poll_seconds", lambda asked, jitter: 0.02)
    monkeypatch.setattr("semel.engine.state.FOLLOW_SECONDS", 0.05)
    holder = Engine(sqlite(tmp_path / "semel.db"))
    holder.migrate()
    permit = holder.claim(command())
    assert isinstance(permit, Permit)
    engine = AsyncEngine(sqlite(tmp_path / "semel.db"))
    gone = asyncio.new_event_loop()
    lost = gone.create_task(engine.claim(command(), wait_seconds=60))
    gone.run_until_complete(until(lambda: bool(engine.core.lookers)))
    gone.close()

    async def scenario() -> None:
        crowd = [asyncio.ensure_future(engine.claim(command(), wait_seconds=30)) for _ in range(3)]
        nonce = engine.core.lookers[permit.claim.id][0]
        await until(lambda: engine.core.lookers[permit.claim.id][0] != nonce)
        nonce = engine.core.lookers[permit.claim.id][0]
        crowd.pop(0).cancel()
        crowd.pop(0).cancel()
        holder.settle(permit, Succeeded(MADE))
        assert isinstance(await asyncio.wait_for(crowd[0], PATIENCE_SECONDS), Replay)
        await engine.close()

    asyncio.run(scenario())
    holder.close()
    lost._log_destroy_pending = False  # type: ignore[attr-defined]  # that it is pending is the point


def test_every_waiter_learns_that_the_polling_one_has_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where the next in line leaves at the same moment: the others do not wait for the moment to make sure."""
    monkeypatch.setattr(commands, "poll_seconds", lambda asked, jitter: 0.02)
    monkeypatch.setattr("semel.engine.state.FOLLOW_SECONDS", 3 * PATIENCE_SECONDS)

    async def scenario() -> None:
        async with (
            await ready(sqlite(tmp_path / "semel.db")) as holder,
            await ready(sqlite(tmp_path / "semel.db")) as engine,
        ):
            permit = await holder.claim(command())
            assert isinstance(permit, Permit)
            crowd = []
            for n in range(1, 4):
                crowd.append(asyncio.ensure_future(engine.claim(command(), wait_seconds=4 * PATIENCE_SECONDS)))
                await until(lambda n=n: engine.core.waiting == n and bool(engine.core.lookers))  # type: ignore[misc]
            await until(lambda: len(engine.core.wakers.get(permit.claim.id, ())) == 3)
            crowd[0].cancel()
            crowd[1].cancel()
            await holder.settle(permit, Succeeded(MADE))
            assert isinstance(await asyncio.wait_for(crowd[2], PATIENCE_SECONDS), Replay)

    asyncio.run(scenario())
