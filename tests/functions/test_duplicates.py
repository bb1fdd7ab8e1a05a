"""Duplicates at the same time, holders that died, stores that did not answer: still one effect, or honest doubt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from semel import AsyncEngine, Permit
from semel.errors import InProgressError, OutcomeUnknownError, StoreError
from semel.functions import command, single_caller, this_permit
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.url import sqlite_backend
from semel.testing.clock import SettableClock
from semel.testing.faults import Crash, Fault, Faults, Kind, When, every_fault, faulty_memory, faulty_sqlite
from tests.functions.stage import EVERYWHERE, Driven, Mode, Stage, Where, backend, set_stage

CROWD = 8


@pytest.mark.parametrize("where", ["memory", "sqlite"])
def test_parallel_threads_make_one_call(where: Where, tmp_path: Path) -> None:
    ran: list[int] = []
    here = threading.Barrier(CROWD)

    def charge(order: str) -> int:
        ran.append(1)
        return len(ran)

    with set_stage("sync", where, tmp_path) as stage:
        once = stage.command(charge, key="order", wait_seconds=30)

        def client(_: int) -> Any:
            here.wait()
            return once("A")

        with ThreadPoolExecutor(CROWD) as pool:
            assert list(pool.map(client, range(CROWD))) == [1] * CROWD
    assert ran == [1]


@pytest.mark.parametrize("where", ["memory", "sqlite"])
def test_parallel_tasks_make_one_call(where: Where, tmp_path: Path) -> None:
    ran: list[int] = []

    async def scenario() -> list[int]:
        engine = AsyncEngine(backend(where, tmp_path))
        await engine.migrate()
        async with engine:
            begun, go = asyncio.Event(), asyncio.Event()

            @command(engine, "pay", key="order", caller=single_caller, wait_seconds=30)
            async def charge(order: str) -> int:
                ran.append(1)
                begun.set()
                await go.wait()
                return len(ran)

            tasks = [asyncio.create_task(charge("A")) for _ in range(CROWD)]
            await begun.wait()
            go.set()
            return await asyncio.gather(*tasks)

    assert asyncio.run(scenario()) == [1] * CROWD
    assert ran == [1]


def test_a_cancelled_caller_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> tuple[str, int]:
        async with AsyncEngine(backend("memory", tmp_path)) as engine:
            begun, go = asyncio.Event(), asyncio.Event()
            ran: list[int] = []

            @command(engine, "pay", key="order", caller=single_caller)
            async def charge(order: str) -> str:
                ran.append(1)
                begun.set()
                await go.wait()
                return "paid"

            task = asyncio.create_task(charge("A"))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go.set()
            return await charge("A"), len(ran)

    assert asyncio.run(scenario()) == ("paid", 1)


@pytest.mark.parametrize(("mode", "where"), EVERYWHERE)
def test_a_duplicate_of_a_running_call_is_refused(mode: Mode, where: Where, tmp_path: Path) -> None:
    met: list[Any] = []

    def asking_itself(order: str) -> str:
        met.append(ask())
        return "paid"

    with set_stage(mode, where, tmp_path) as stage:
        # The nested call runs where the handler does: on the loop, it is another stage's that asks.
        other = Stage("sync", stage.engine.backend)
        once = stage.command(asking_itself, key="order", wait_seconds=0)
        twin = Driven(other.end, command(other.engine, "pay", key="order", caller=single_caller, wait_seconds=0)(same))
        twin.once._declared.fingerprints = once.once._declared.fingerprints

        def ask() -> Any:
            with pytest.raises(InProgressError, match="still running; keep the key and ask again") as caught:
                twin("A")
            return caught.value.retry_after_seconds

        assert once("A") == "paid"
        assert twin("A") == "paid"
    assert 0 < met[0] <= 30


def same(order: str) -> str:
    raise AssertionError("it runs once, and not here")


@pytest.mark.parametrize(("mode", "where"), EVERYWHERE)
@pytest.mark.parametrize("effects", ["external", "idempotent"])
def test_a_lapsed_lease_is_judged_by_effects(mode: Mode, where: Where, effects: str, tmp_path: Path) -> None:
    """The holder hangs, its lease lapses, another process asks; then the holder comes back."""
    clock = SettableClock()
    keys: list[str] = []
    met: list[Any] = []

    def charge(order: str, permit: Permit = this_permit) -> str:
        keys.append(permit.key_for("charge"))
        if len(keys) == 1:
            clock.advance(seconds=31)
            met.append(twin.attempt("A"))
        return f"run {len(keys)}"

    with set_stage(mode, where, tmp_path, clock) as stage:
        other = Stage("sync", stage.engine.backend)
        settings: dict[str, Any] = {"key": "order", "caller": single_caller, "effects": effects, "wait_seconds": 0}
        twin = Driven(other.end, command(other.engine, "pay", **settings)(charge))
        once = stage.command(charge, **settings)
        first = once.attempt("A")
        if effects == "external":
            assert (met, first, once("A")) == ([OutcomeUnknownError], "run 1", "run 1")  # the holder still may speak
        else:
            assert (met, first, once("A"), len(set(keys))) == (["run 2"], "run 2", "run 2", 1)  # what the store holds


# --- faults ---


class Story:
    """One command in a process that a fault happens to, and then in another on the same store."""

    def __init__(self, mode: Mode, where: Where, effects: str, folder: Path) -> None:
        self.mode, self.where, self.effects, self.folder = mode, where, effects, folder
        self.clock = SettableClock()
        self.keys: list[str] = []

    def charge(self, order: str, permit: Permit = this_permit) -> str:
        self.keys.append(permit.key_for("charge"))
        return "paid"

    def declare(self, stage: Stage) -> Driven:
        def charge(order: str, permit: Permit = this_permit) -> str:
            return self.charge(order, permit)

        return stage.command(charge, key="order", effects=self.effects, wait_seconds=0)

    def first(self, fault: Fault) -> tuple[Faults, Any, Any]:
        """Return what the first caller got; None if it was gone."""
        faults = Faults(fault)
        faults.rest()
        path = str(self.folder / "semel.db")
        faulty = (
            faulty_sqlite(path, self.clock, faults) if self.where == "sqlite" else faulty_memory(self.clock, faults)
        )
        stage = Stage(self.mode, faulty.backend, confirm_seconds=0.01).open()
        once = self.declare(stage)
        faults.resume()
        told = None
        try:
            told = once.attempt("A")
        except Crash:
            pass
        finally:
            if stage.runner is not None:
                stage.runner.close()
            else:
                stage.engine._upkeep.close()
            faulty.bury()
        return faults, told, faulty.backend

    def then(self, former: Any) -> Any:
        """Return what a retry gets in the end, when the lease is over."""
        self.clock.advance(seconds=31)
        if self.where == "sqlite":
            former = sqlite_backend(SqliteDriver(str(self.folder / "semel.db"), synchronous="OFF", clock=self.clock))
        else:
            former.driver.faults.dead = False
        stage = Stage(self.mode, former).open()
        try:
            return self.declare(stage).attempt("A")
        finally:
            stage.close()


@pytest.mark.parametrize(("mode", "where"), EVERYWHERE)
@pytest.mark.parametrize("effects", ["external", "idempotent"])
@pytest.mark.parametrize(
    ("kind", "when"),
    [(Kind.CRASH, When.BEFORE), (Kind.CRASH, When.AFTER), (Kind.TIMEOUT, When.AFTER), (Kind.FAIL, When.BEFORE)],
)
def test_every_fault_leaves_one_effect_or_unknown(
    mode: Mode, where: Where, effects: str, kind: Kind, when: When, tmp_path: Path
) -> None:
    struck = 0
    for fault in every_fault(kind, when, once=kind is Kind.CRASH):
        folder = tmp_path / str(fault.n)
        folder.mkdir()
        story = Story(mode, where, effects, folder)
        faults, told, former = story.first(fault)
        if told == "paid":
            assert story.then(former) == "paid", fault
        elif told is not None:
            ran = len(story.keys)
            assert issubclass(told, OutcomeUnknownError if ran else StoreError), fault
        end = story.then(former)
        # A claim that was written may have been followed by the effect: external commands do not guess.
        assert end == "paid" or (effects == "external" and end is OutcomeUnknownError), fault
        assert len(set(story.keys)) == (1 if end == "paid" else len(story.keys)), fault
        assert effects == "idempotent" or len(story.keys) <= 1, fault
        if faults.clean:
            break
        struck += 1
    assert struck >= 2


def test_an_exception_is_raised_even_if_the_store_does_not_answer(tmp_path: Path) -> None:
    """The caller learns what happened, not only that it could not be written down."""
    raised: list[Callable[[], None]] = []

    def charge(order: str) -> str:
        faults.resume()
        raised[0]()
        return "paid"

    faults = Faults(Fault(Kind.FAIL, When.BEFORE, 1, once=False))
    faults.rest()
    stage = Stage("sync", faulty_memory(SettableClock(), faults).backend, confirm_seconds=0.01).open()
    once = stage.command(charge, key="order")

    def times_out() -> None:
        raise TimeoutError("the provider")

    raised[:] = [times_out]
    with pytest.raises(TimeoutError, match="the provider"):
        once("A")
    faults.rest()
    raised[:] = [lambda: None]
    with pytest.raises(
        OutcomeUnknownError, match="ran, but the store did not confirm it; call again with the same key"
    ):
        once("B")
    faults.rest()
    stage.close()
