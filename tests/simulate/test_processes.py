"""The simulated process: a crash runs nothing, a pause freezes all, time is the world's alone."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from semel.testing.simulate.loop import WorkerLoop
from semel.testing.simulate.violation import Violated
from semel.testing.simulate.world import World


@pytest.fixture
def world() -> World:
    return World(1)


@pytest.fixture
def loop(world: World) -> WorkerLoop:
    made = WorkerLoop(world)
    world.loops.append(made)
    return made


async def nap(seconds: float, log: list[str], name: str) -> None:
    await asyncio.sleep(seconds)
    log.append(name)


def test_a_day_takes_no_time(world: World, loop: WorkerLoop) -> None:
    log: list[str] = []
    _ = loop.create_task(nap(86_400, log, "slept"))
    began = time.perf_counter()
    world.run(90_000)
    assert log == ["slept"]
    assert time.perf_counter() - began < 5
    loop.bury()


def test_timers_fire_in_their_order(world: World, loop: WorkerLoop) -> None:
    log: list[str] = []
    for seconds in (3, 1, 2):
        _ = loop.create_task(nap(seconds, log, str(seconds)))
    world.run(10)
    assert log == ["1", "2", "3"]
    loop.bury()


def test_a_pause_freezes_the_process_and_not_its_clock(world: World, loop: WorkerLoop) -> None:
    log: list[str] = []
    _ = loop.create_task(nap(1, log, "woken"))
    world.run(0.1)
    loop.paused = True
    world.run(5)
    assert log == []
    loop.paused = False
    world.run(0.001)
    assert log == ["woken"]
    assert loop.time() >= 5
    loop.bury()


def test_what_a_dying_process_does_on_its_way_out_reaches_nobody(world: World, loop: WorkerLoop) -> None:
    log: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(100)
        except BaseException:
            log.append("tries")
            loop.call_soon(log.append, "heard")
            _ = loop.create_task(nap(0, log, "begun"))
            raise

    _ = loop.create_task(stubborn())
    world.run(1)
    loop.bury()
    world.run(200)
    assert log == ["tries"]
    assert not loop.ready


def test_timeouts_and_shields_are_asyncios_own(world: World, loop: WorkerLoop) -> None:
    log: list[str] = []

    async def work() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await asyncio.shield(loop.create_task(nap(3, log, "shielded")))
        log.append(f"over at {loop.time():.0f}")

    _ = loop.create_task(work())
    world.run(10)
    assert log == ["over at 2", "shielded"]
    loop.bury()


def test_what_repeats_itself_for_ever_is_a_violation(world: World, loop: WorkerLoop) -> None:
    async def spin() -> None:
        loop.call_soon(lambda: loop.create_task(spin()))

    _ = loop.create_task(spin())
    with pytest.raises(Violated, match="I6 progress: no end"):
        world.run(1)
    loop.bury()
