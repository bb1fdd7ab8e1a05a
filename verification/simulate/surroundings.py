"""What the engine asks of its host, answered by the world: time, random bits and the process's id.

While a schedule runs, the modules below see these in place of ``time``, ``os`` and ``random``. The change is
one of this process: no other engine may run in it meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from semel.engine import renewal as upkeep
from semel.engine import runner as performing
from semel.engine import state as core
from semel.resuming import worker as completer
from semel.retention import worker as reaper
from semel.steps import run as steps
from semel.testing.clock import START_US
from semel.workers import loop
from verification.simulate.world import World

_MODULES: Final[tuple[tuple[Any, tuple[str, ...]], ...]] = (
    (core, ("time", "os", "random")),
    (upkeep, ("time",)),
    (performing, ("time",)),
    (reaper, ("time",)),
    (steps, ("time",)),
    (completer, ("time",)),
    (loop, ("random",)),
)


class Surroundings:
    """Replaces the modules ``time``, ``os`` and ``random``, as far as the engine uses them."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.now / 1_000_000

    perf_counter = monotonic

    def time_ns(self) -> int:
        return (START_US + self._world.now) * 1000

    def urandom(self, size: int) -> bytes:
        return self._world.bits(size)

    def getpid(self) -> int:
        return 1

    def SystemRandom(self) -> random.Random:
        return self._world.chance


@contextmanager
def surroundings(world: World) -> Iterator[None]:
    """Have the engine's modules ask this world, until the block is left."""
    before = [(module, name, getattr(module, name)) for module, names in _MODULES for name in names]
    stand_in = Surroundings(world)
    try:
        for module, name, _ in before:
            setattr(module, name, stand_in)
        yield
    finally:
        for module, name, real in before:
            setattr(module, name, real)
