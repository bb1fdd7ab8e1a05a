"""Commands at one store, in process: claim and settle, or replay, from so many tasks at once, with every latency."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from bench.growth.records import answer, command
from semel import AsyncEngine
from semel.core.model import Replay, Settled
from semel.core.outcomes import Succeeded
from semel.engine.permit import Permit

FIRST_NEW: Final = 1_000_000_000  # numbers from here on were never loaded


class WrongAnswer(Exception):
    """A store gave a wrong verdict, so the figures of the run would mislead."""


@dataclass(slots=True)
class Samples:
    """What a stretch of time has seen. Latencies in seconds; ``claims`` are those of the claim alone."""

    seconds: float = 0.0
    done: int = 0
    claims: list[float] = field(default_factory=list)
    commands: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Commands per second."""
        return self.done / self.seconds if self.seconds else 0.0


def percentile(samples: list[float], share: float) -> float:
    """The smallest sample that so large a share of all does not exceed, in milliseconds."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000 if ordered else 0.0


class Caller:
    """Makes commands on an engine. New ones have unused numbers, old ones come from ``known``."""

    def __init__(self, engine: AsyncEngine, known: range) -> None:
        self._engine = engine
        self._numbers = itertools.count(FIRST_NEW + random.SystemRandom().randrange(9 * 10**11))
        self._random = random.Random(7)
        self._known: range | list[int] = known
        self._written: list[int] = []

    @property
    def known(self) -> range | list[int]:
        """The numbers of the records that are replayed: what was loaded, or else what was made here."""
        return self._known or self._written

    async def fresh(self, ways: int, seconds: float, per_second: float | None = None) -> Samples:
        """Claim and settle new keys in so many tasks at once, ``per_second`` together or without a pause."""
        samples = Samples()

        async def one(began: float) -> None:
            number = next(self._numbers)
            permit = await self._engine.claim(command(number))
            claimed = time.perf_counter()
            if not isinstance(permit, Permit):
                raise WrongAnswer(f"a new key was answered {permit}")
            settled = await self._engine.settle(permit, Succeeded(answer(number)))
            ended = time.perf_counter()
            if not isinstance(settled, Settled):
                raise WrongAnswer(f"a settlement was answered {settled}")
            samples.claims.append(claimed - began)
            samples.commands.append(ended - began)
            if len(self._written) < 100_000:
                self._written.append(number)

        return await _repeat(one, ways, seconds, samples, per_second)

    async def replays(self, ways: int, seconds: float) -> Samples:
        """Ask again for records that are there, chosen at random, and compare the answers."""
        samples = Samples()
        known = self.known

        async def one(began: float) -> None:
            number = self._random.choice(known)
            verdict = await self._engine.claim(command(number))
            samples.commands.append(time.perf_counter() - began)
            if not isinstance(verdict, Replay) or verdict.answer.body != answer(number).body:
                raise WrongAnswer(f"record {number} was to be replayed and was answered {verdict}")

        return await _repeat(one, ways, seconds, samples)


async def _repeat(
    one: Callable[[float], Awaitable[None]],
    ways: int,
    seconds: float,
    samples: Samples,
    per_second: float | None = None,
) -> Samples:
    began = time.perf_counter()
    ends = began + seconds

    async def task(turns: Iterator[float]) -> None:
        for turn in turns:
            now = time.perf_counter()
            if turn > now:
                await asyncio.sleep(turn - now)
            if max(turn, now) >= ends:
                return
            # What is late because the one before it took long, has waited from its turn on.
            await one(now if per_second is None else turn)
            samples.done += 1

    async with asyncio.TaskGroup() as group:
        for place in range(ways):
            step = 0.0 if per_second is None else ways / per_second
            group.create_task(task(itertools.count(began + step * place / ways, step)))
    samples.seconds = time.perf_counter() - began
    return samples
