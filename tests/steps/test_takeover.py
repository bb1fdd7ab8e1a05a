"""What a process that died has left behind is taken over, or visible as UNKNOWN, within its lease and one second.

The real engines, loops and flows run in the simulator's world, where time passes by being counted: each number here is
one of many seeds' resting times. One test does it with real processes and a real clock.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import pytest

from semel import Answer, AsyncEngine, AsyncPermit, Command, Engine, Permit, Policy, Scope, State
from semel.core.identity import record_id
from semel.core.model import Record
from semel.resuming.worker import Completer
from semel.retention.worker import Reaper
from tests.engine.shells import SCOPE, command
from tests.steps.dying import abandoned_policy, backend
from tests.worker.test_reaper import Heard
from verification.simulate.database import SqliteDatabase
from verification.simulate.script import Part
from verification.simulate.server import Server
from verification.simulate.step_ledger import StepLedger
from verification.simulate.step_watch import StepWatch, steps_are_noted
from verification.simulate.surroundings import surroundings
from verification.simulate.watch import Watch
from verification.simulate.wire import ONCE
from verification.simulate.worker import Worker
from verification.simulate.world import SECOND, World

LEASE_SECONDS: Final = 3.0
PROMISED_US: Final = 1 * SECOND
SEEDS: Final = range(12)
OK: Final = Answer(201, (), b"done")
PAY: Final = Scope("acme", "alice", "pay")


def policy(**options: Any) -> Policy:
    return Policy.of(lease_seconds=LEASE_SECONDS, deadline_seconds=60.0, **options)


class Stage:
    """Two processes on one store: the first one dies in the middle of its handler."""

    def __init__(self, seed: int, what: Policy) -> None:
        self.world = world = World(seed)
        ledger = StepLedger(world, 0, (Part("charge", "repeatable"),), deduplicates=True)
        self.server = Server(world, SqliteDatabase(), ledger, StepWatch if what.steps else Watch, transactional=True)
        request = b"ten euros" if what.resumable else None
        self.command = Command(PAY, "k", bytes(32), "1.tests", what, request=request)
        self.times: dict[str, int] = {}

    @contextmanager
    def play(self, handler: Callable[[AsyncPermit], Awaitable[Answer]]) -> Iterator[Worker]:
        """Run until the first process dies at some moment between two renewals; give the second one."""
        noting = steps_are_noted(self.server, faultless=True) if self.command.policy.steps else nullcontext()
        with surroundings(self.world), noting:
            first, second = (Worker(self.world, self.server, name, 0.0, ONCE, coalesces=False) for name in ("a", "b"))
            try:
                _ = first.loop.create_task(first.engine.run(self.command, handler))
                self.world.run(0.5 + 2 * self.world.draw())
                first.crash()
                yield second
            finally:
                second.loop.bury()
                self.server.data.close()

    def row(self) -> Record:
        return self.server.data.rows()[record_id(PAY, "k")]

    def watch(self, name: str, seen: Callable[[], bool]) -> None:
        """Look every hundredth of a simulated second, until it is seen."""
        if seen():
            self.times[name] = self.server.clock()
            self.world.stop()
        else:
            self.world.after(10_000, self.watch, name, seen)

    def late_us(self, name: str, lapses: int) -> int:
        self.world.run(20)
        assert name in self.times, f"{name} was not seen in twenty seconds"
        return self.times[name] - lapses


async def hangs(permit: Permit) -> Answer:
    await asyncio.Event().wait()
    return OK


async def hangs_in_a_repeatable_step(permit: AsyncPermit) -> Answer:
    await permit.step("charge", asyncio.Event().wait, repeat=True, returns=int)
    return OK


async def hangs_in_a_step(permit: AsyncPermit) -> Answer:
    await permit.step("charge", asyncio.Event().wait, returns=int)
    return OK


@pytest.mark.parametrize("seed", SEEDS)
def test_an_idempotent_command_is_taken_over_by_its_waiter(seed: int) -> None:
    stage = Stage(seed, policy(effects="idempotent"))
    with stage.play(hangs) as second:
        lapses, taken = stage.row().lease_until, []

        async def again(permit: Permit) -> Answer:
            taken.append(permit.attempt)
            return OK

        _ = second.loop.create_task(second.engine.run(stage.command, again, wait_seconds=10))
        stage.watch("taken over", lambda: bool(taken))
        late = stage.late_us("taken over", lapses)
    assert 0 <= late <= PROMISED_US
    assert taken == [2]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_abandoned_resumable_execution_is_taken_over_by_a_completer(seed: int) -> None:
    stage = Stage(seed, policy(steps=True, resumable=True))
    with stage.play(hangs_in_a_repeatable_step) as second:
        lapses, taken = stage.row().lease_until, []
        completer = Completer(second.engine)

        async def resume(permit: Permit, request: bytes) -> Answer:
            taken.append(request)
            return OK

        completer.register("pay", stage.command.policy, resume)
        _ = second.loop.create_task(completer.run())
        stage.watch("taken over", lambda: bool(taken))
        late = stage.late_us("taken over", lapses)
    assert 0 <= late <= PROMISED_US
    assert taken == [b"ten euros"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("handler", [hangs, hangs_in_a_step])
def test_a_doubt_is_visible(handler: Callable[[Permit], Awaitable[Answer]], seed: int) -> None:
    stage = Stage(seed, policy(steps=handler is hangs_in_a_step))
    with stage.play(handler) as second:
        row = stage.row()
        _ = second.loop.create_task(Reaper(second.engine).run())
        stage.watch("unknown", lambda: stage.row().state == State.UNKNOWN)
        late = stage.late_us("unknown", row.lease_until)
        doubt = stage.row().doubt
    assert 0 <= late <= PROMISED_US
    assert doubt == ("step:charge" if handler is hangs_in_a_step else "lapsed")


def test_a_killed_process_is_visible_in_real_time(tmp_path: Path) -> None:
    """SIGKILL in the middle of a step, a second real process with a reaper: its lease, one second, and no more."""
    path = tmp_path / "semel.db"
    with closing(Engine(backend(str(path), ""))) as engine:
        engine.migrate()
    died = subprocess.run([sys.executable, "-m", "tests.steps.dying", "abandon", str(path)], check=False)
    assert died.returncode == -signal.SIGKILL
    heard = Heard("unknown")

    async def look() -> tuple[Record, int]:
        async with AsyncEngine(backend(str(path), ""), observer=heard) as engine:
            id = engine.core.attempt(command("k", policy=abandoned_policy())).id
            [row] = await engine.perform("read", lambda: engine.store.read((id,)))
            assert row is not None
            async with Reaper(engine), asyncio.timeout(20):
                await heard.heard.wait()
            seen = time.time_ns() // 1000
            [after] = await engine.perform("read", lambda: engine.store.read((id,)))
            assert after is not None
            return after, seen - row.lease_until

    after, late_us = asyncio.run(look())
    assert (after.state, after.doubt) == (State.UNKNOWN, "step:charge")
    assert 0 <= late_us <= PROMISED_US
    assert after.operation == SCOPE.operation
