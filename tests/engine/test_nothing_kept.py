"""What an engine holds in memory does not grow with the commands that it has seen, however they ended.

But for claims that were given up, which it goes on releasing until their leases are over.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, MethodType

from semel import Answer, AsyncEngine, Engine, NothingHappened, Permit, Policy
from semel.errors import SemelError
from semel.policy import Command
from semel.telemetry import Silence
from tests.engine.drivers import sqlite
from tests.engine.shells import MADE, command

CONTAINERS = (dict, list, set, deque)


def count_held(engine: object) -> int:
    """How many things lie in all containers that can be reached from an engine through Semel's own objects."""
    seen: set[int] = set()
    total = 0
    queue = [engine]
    while queue:
        each = queue.pop()
        if id(each) in seen or isinstance(each, type):
            continue
        seen.add(id(each))
        if isinstance(each, CONTAINERS):
            total += len(each)
        elif not isinstance(each, (tuple, MethodType, FunctionType)) and not type(each).__module__.startswith("semel"):
            continue
        queue += [
            other for other in gc.get_referents(each) if not (isinstance(other, dict) and "__builtins__" in other)
        ]
    return total


def commands(numbers: range) -> Iterator[Command]:
    for number in numbers:
        for effects in ("external", "idempotent", "atomic"):
            yield command(f"{effects}-{number}", policy=Policy.of(effects=effects))


def end(permit: Permit) -> Answer:
    """A handler that returns an answer, raises NothingHappened or raises ValueError, by the key's number."""
    number = int(permit.command.key.rpartition("-")[2])
    if number % 3 == 1:
        raise NothingHappened
    if number % 3 == 2:
        raise ValueError
    return MADE


def use(engine: Engine, numbers: range) -> int:
    for what in commands(numbers):
        for _ in range(2):  # and again, with everything that exists by then
            try:
                engine.run(what, end)
            except (SemelError, NothingHappened, ValueError):
                continue
    return count_held(engine)


async def use_async(engine: AsyncEngine, numbers: range) -> int:
    async def handler(permit: Permit) -> Answer:
        await asyncio.sleep(0)
        return end(permit)

    for what in commands(numbers):
        both = [asyncio.ensure_future(engine.run(what, handler, wait_seconds=5)) for _ in range(2)]
        await asyncio.gather(*both, return_exceptions=True)
    await asyncio.sleep(0)
    return count_held(engine)


def test_nothing_is_kept_on_threads(tmp_path: Path) -> None:
    engine = Engine(sqlite(tmp_path / "semel.db"), observer=Silence())  # the default one remembers 1,000 warnings
    engine.migrate()
    with engine:
        before = use(engine, range(12))
        assert use(engine, range(12, 72)) <= before + 5


def test_nothing_is_kept_on_a_loop(tmp_path: Path) -> None:
    async def scenario() -> tuple[int, int]:
        engine = AsyncEngine(sqlite(tmp_path / "semel.db"), observer=Silence())
        await engine.migrate()
        async with engine:
            before = await use_async(engine, range(12))
            return before, await use_async(engine, range(12, 72))

    before, after = asyncio.run(scenario())
    assert after <= before + 5
