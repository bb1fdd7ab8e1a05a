"""The measurements: alternating rounds over stores of every size, then the purge of the largest."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from bench.growth.commands import Caller, Samples, WrongAnswer, percentile
from bench.growth.places import Place, Sizes
from bench.growth.purge import Purging, purge
from bench.growth.records import Age, Population, answer, command
from semel import AsyncEngine
from semel.core.model import KeyExpired, Replay

WAYS: Final = 32
SAMPLE: Final = 100  # records of each age that are asked for again
WARM_SECONDS: Final = 0.3
PURGE_SECONDS_MAX: Final = 1.0  # of a stretch with the purge or without


@dataclass(frozen=True, slots=True)
class Site:
    """A store that is measured: how many records were loaded, and where they are."""

    records: int
    place: Place


@dataclass(slots=True)
class Cell:
    """One store's samples; each list has one entry a round. Latencies in milliseconds, of the claim alone."""

    alone: list[float] = field(default_factory=list)  # commands per second, one after the other
    alone_p50: list[float] = field(default_factory=list)
    alone_p99: list[float] = field(default_factory=list)
    crowd: list[float] = field(default_factory=list)  # the same from 32 tasks at once
    crowd_p50: list[float] = field(default_factory=list)
    crowd_p99: list[float] = field(default_factory=list)
    replays: list[float] = field(default_factory=list)  # per second, from 32 tasks at once
    logged: list[float] = field(default_factory=list)  # bytes that the database logged for one command
    sizes: Sizes | None = None
    sizes_after: Sizes | None = None  # of the smallest store: what the rounds have written included


@dataclass(slots=True)
class Results:
    """Everything that was measured, by the number of records loaded."""

    cells: dict[int, Cell] = field(default_factory=dict)
    purged: dict[int, Purging] = field(default_factory=dict)
    sizes_purged: Sizes | None = None
    load_seconds: dict[int, float] = field(default_factory=dict)
    drop_seconds: dict[int, float] = field(default_factory=dict)

    def ratios(self, what: str, of: int, to: int) -> list[float]:
        """One size's rates by another's of the same round."""
        mine, others = getattr(self.cells[of], what), getattr(self.cells[to], what)
        return [one / other for one, other in zip(mine, others, strict=True)]


async def verify(engine: AsyncEngine, population: Population) -> None:
    """Ask again for some records of every age, as their callers would.

    Raises WrongAnswer: what was loaded is not what a store writes.
    """
    chosen = random.Random(1)
    for age in Age:
        part = population.part(age)
        for number in chosen.sample(part, min(SAMPLE, len(part))):
            verdict = await engine.claim(command(number))
            said = verdict.answer if isinstance(verdict, Replay) else None
            right = said == answer(number) if age is Age.LIVE else isinstance(verdict, KeyExpired)
            if not right:
                raise WrongAnswer(f"record {number} ({age.name}) was answered {verdict}")


async def measure(sites: Sequence[Site], rounds: int, seconds: float, purging: bool, results: Results) -> None:
    """Fill ``results``. Raises WrongAnswer if a store gives a wrong verdict."""
    async with AsyncExitStack() as stack:
        callers: list[tuple[Site, Caller]] = []
        for site in sites:
            engine = await stack.enter_async_context(AsyncEngine.connect(site.place.url))
            population = Population(site.records, 0)
            await verify(engine, population)
            caller = Caller(engine, population.part(Age.LIVE))
            callers.append((site, caller))
            results.cells[site.records] = Cell(sizes=site.place.sizes())
            await caller.fresh(WAYS, WARM_SECONDS)
            await caller.replays(WAYS, WARM_SECONDS)
            site.place.settle_down()
        for turn in range(rounds):
            # Each size comes first as often as the others: the machine is not the same from one moment to the next.
            for site, caller in (*callers[turn % len(callers) :], *callers[: turn % len(callers)]):
                await _round(results.cells[site.records], site.place, caller, seconds)
            print(f"growth: round {turn + 1} of {rounds}", file=sys.stderr)
        smallest = sites[0]  # what its records take is what the engine has written
        results.cells[smallest.records].sizes_after = smallest.place.sizes()
        if purging:
            largest, caller = callers[-1]
            stretch = min(2 * seconds, PURGE_SECONDS_MAX)
            results.purged[largest.records] = await purge(largest.place, caller, WAYS, stretch)
            results.sizes_purged = largest.place.sizes()


async def _round(cell: Cell, place: Place, caller: Caller, seconds: float) -> None:
    alone = await caller.fresh(1, seconds)
    cell.alone.append(alone.rate)
    cell.alone_p50.append(percentile(alone.claims, 0.5))
    cell.alone_p99.append(percentile(alone.claims, 0.99))
    logged = place.log_bytes()
    crowd = await caller.fresh(WAYS, seconds)
    if logged is not None:
        cell.logged.append(((place.log_bytes() or 0) - logged) / max(1, crowd.done))
    cell.crowd.append(crowd.rate)
    cell.crowd_p50.append(percentile(crowd.claims, 0.5))
    cell.crowd_p99.append(percentile(crowd.claims, 0.99))
    replays: Samples = await caller.replays(WAYS, seconds)
    cell.replays.append(replays.rate)


def load(site: Site, results: Results) -> None:
    """Make the store and load it."""
    began = time.monotonic()
    site.place.make(Population(site.records, time.time_ns() // 1000))
    results.load_seconds[site.records] = time.monotonic() - began
