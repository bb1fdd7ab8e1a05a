"""A purge beside commands: its rate alone, and the commands' p99 in alternating stretches with it and without."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from bench.growth.commands import Caller, Samples, percentile
from bench.growth.places import Place
from bench.processes import END_SECONDS, ROOT

PACED_WAYS: Final = 16
PACED_PER_SECOND: Final = 300.0
TURNS_BESIDE: Final = 15  # of stretches beside commands; the rest of the walk is done alone


@dataclass(slots=True)
class Load:
    """What commands have met: latencies in seconds of claim and settle together."""

    without: list[float] = field(default_factory=list)
    with_purge: list[float] = field(default_factory=list)

    @property
    def p99_ms(self) -> tuple[float, float]:
        """Without the purge, and beside it."""
        return percentile(self.without, 0.99), percentile(self.with_purge, 0.99)


@dataclass(slots=True)
class Purging:
    """A whole walk of the purge. Rates are of stretches in which nothing else ran."""

    scanned: int = 0
    dropped: int = 0
    forgotten: int = 0
    work_rates: list[float] = field(default_factory=list)  # dropped and forgotten records per second
    walk_rates: list[float] = field(default_factory=list)  # records looked at per second where nothing was over
    log_per_record: list[float] = field(default_factory=list)  # bytes, of stretches that did work
    beside_rates: list[float] = field(default_factory=list)  # as work_rates, with commands
    paced: Load = field(default_factory=Load)
    crowded: Load = field(default_factory=Load)
    clean_up_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """What the purge did in one stretch."""

    scanned: int
    dropped: int
    forgotten: int
    over: bool
    seconds: float

    @property
    def work(self) -> int:
        """Records that were dropped or forgotten."""
        return self.dropped + self.forgotten


class Purger:
    """The purge in its own process, as a worker or `semel purge` runs it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def go(self, seconds: float) -> Stretch:
        """Purge so long, or to the end of the walk."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"%f\n" % seconds)
        return Stretch(**json.loads(await self._process.stdout.readline()))


@asynccontextmanager
async def purger(url: str) -> AsyncIterator[Purger]:
    """A process that purges on request; it ends with the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.growth.purging", url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield Purger(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


async def purge(place: Place, caller: Caller, ways: int, seconds: float) -> Purging:
    """Walk the whole store, in stretches of ``seconds``: alone, beside commands at a pace, beside ``ways`` at once."""
    found, turns = Purging(), 0
    async with purger(place.url) as worker:
        while True:
            logged = place.log_bytes()
            alone = _count_forgotten(found, await worker.go(seconds))
            if alone.work == 0:
                found.walk_rates.append(alone.scanned / alone.seconds)
            else:
                found.work_rates.append(alone.work / alone.seconds)
                if logged is not None:
                    found.log_per_record.append(((place.log_bytes() or 0) - logged) / alone.work)
            if alone.over:
                break
            if alone.work and turns < TURNS_BESIDE:
                turns += 1
                if await _beside(found, worker, caller, ways, seconds):
                    break
    found.clean_up_seconds = place.clean_up()
    return found


async def _beside(found: Purging, worker: Purger, caller: Caller, ways: int, seconds: float) -> bool:
    """The same commands without the purge, then with it; whether the walk is over."""
    for load, tasks, pace in ((found.paced, PACED_WAYS, PACED_PER_SECOND), (found.crowded, ways, None)):
        load.without += (await caller.fresh(tasks, seconds, pace)).commands
        stretch, samples = await _both(worker, caller, tasks, seconds, pace)
        _count_forgotten(found, stretch)
        if stretch.work and not stretch.over:
            load.with_purge += samples.commands
            found.beside_rates.append(stretch.work / stretch.seconds)
        if stretch.over:
            return True
    return False


async def _both(
    worker: Purger, caller: Caller, tasks: int, seconds: float, pace: float | None
) -> tuple[Stretch, Samples]:
    async with asyncio.TaskGroup() as group:
        purging = group.create_task(worker.go(seconds))
        commands = group.create_task(caller.fresh(tasks, seconds, pace))
    return purging.result(), commands.result()


def _count_forgotten(found: Purging, stretch: Stretch) -> Stretch:
    found.scanned += stretch.scanned
    found.dropped += stretch.dropped
    found.forgotten += stretch.forgotten
    return stretch
