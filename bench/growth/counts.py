"""``python -m bench.growth.counts``: what a command touches in stores of several sizes, counted by PostgreSQL.

Times depend on what else a machine does; the rows and pages that a statement touches do not. The stores are schemas of
the run's own, as those of ``python -m bench.growth``, and are removed at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from bench.growth.commands import FIRST_NEW
from bench.growth.places import PlaceError, PostgresPlace, place
from bench.growth.records import Age, Population, answer, command
from semel import AsyncEngine
from semel.core.outcomes import Succeeded
from semel.engine.permit import Permit

TIMES: Final = 500
HEAD: Final = ("records", "what", "whole scans", "index scans", "table pages", "index pages")


async def count(site: PostgresPlace, size: int, times: int = TIMES) -> dict[str, list[float]]:
    """What a new command and a replay touch each, on average: the columns of ``HEAD`` from the third on."""
    numbers, known = itertools.count(FIRST_NEW), list(Population(size, 0).part(Age.LIVE))
    chosen = random.Random(7)

    async def fresh(engine: AsyncEngine) -> None:
        number = next(numbers)
        permit = await engine.claim(command(number))
        assert isinstance(permit, Permit)
        await engine.settle(permit, Succeeded(answer(number)))
        known.append(number)

    async def replay(engine: AsyncEngine) -> None:
        await engine.claim(command(chosen.choice(known)))

    kinds: dict[str, Callable[[AsyncEngine], Awaitable[None]]] = {"command": fresh, "replay": replay}
    found: dict[str, list[float]] = {}
    for name, one in kinds.items():
        async with AsyncEngine.connect(site.url) as engine:
            await one(engine)  # what the first call of a process asks for besides
        began = await asyncio.to_thread(site.count_touched, 1)
        async with AsyncEngine.connect(site.url) as engine:
            for _ in range(times):
                await one(engine)
        ended = await asyncio.to_thread(site.count_touched, sum(began) + times)
        found[name] = [(after - before) / times for before, after in zip(began, ended, strict=True)]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Load, count and print; progress goes to stderr."""
    parser = argparse.ArgumentParser(prog="python -m bench.growth.counts", description=__doc__)
    parser.add_argument(
        "--url", required=True, help="postgresql://USER@HOST/DATABASE, which no other client uses during the run"
    )
    parser.add_argument("sizes", nargs="*", type=int, default=[0, 10_000, 1_000_000], help="records in each store")
    given = parser.parse_args(arguments)
    print("\t".join(HEAD))
    for size in given.sizes:
        site = place(given.url, size)
        if not isinstance(site, PostgresPlace) or site.exists():
            raise PlaceError("give the URL of a PostgreSQL server that has no store of this size")
        try:
            site.make(Population(size, time.time_ns() // 1000))
            for name, values in asyncio.run(count(site, size)).items():
                print(f"{size:,}\t{name}\t" + "\t".join(f"{value:.2f}" for value in values), flush=True)
        finally:
            site.drop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
