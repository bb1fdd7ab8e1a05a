"""Semel's store calls from one process, as fast as they come; and the same two statements written by hand.

``python -m bench.calls [KIND, URL, WAYS, SECONDS]`` prints one line of JSON: the pairs per second, and the CPU time of
a pair in this process. ``calls``: claims and settlements of so many tasks through the engine's own performer, which
lets them share their round trips where the store's driver gains by it. ``plain``: what pgbench sends, from one task
through psycopg or asyncpg, with prepared statements.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import uvloop

from bench.plain import CLAIMS, COMPLETIONS, CONNECTS, make_plain_table, plain_id
from bench.probes import Probed
from bench.protected import migrate
from bench.stores import for_semel
from bench.subjects import ANSWER_BODY, PATH
from semel import Answer, AsyncEngine, Command, Policy, Scope
from semel.core.command_flow import make_settlement
from semel.core.model import Proceed, Settled
from semel.core.outcomes import Succeeded
from semel.engine.runner import AsyncPerformer

WARMUP_SECONDS: Final = 0.2
_ANSWER: Final = Answer(201, ((b"content-type", b"application/json"),), ANSWER_BODY)

Pair = Callable[[str], Awaitable[None]]


@asynccontextmanager
async def semel_pairs(url: str) -> AsyncIterator[Pair]:
    """A claim and its settlement, by the store's verbs."""
    engine = AsyncEngine.connect(for_semel(url))
    store, core = engine.store, engine.core
    performer = AsyncPerformer(core, engine.backend)
    scope, policy = Scope("single", "single", f"POST {PATH}"), Policy()

    async def pair(key: str) -> None:
        attempt = core.attempt(Command(scope, key, bytes(32), "bench", policy))
        verdict = await performer.store_one("claim", store.claim, attempt)
        assert isinstance(verdict, Proceed)
        settled = await performer.store_one("settle", store.settle, make_settlement(verdict.grant, Succeeded(_ANSWER)))
        assert isinstance(settled, Settled)

    async with engine:
        yield pair


@asynccontextmanager
async def plain_pairs(url: str) -> AsyncIterator[Pair]:
    """The statements of pgbench, through psycopg or asyncpg."""
    kind = urlsplit(url).scheme
    claim, complete = CLAIMS[kind], COMPLETIONS[kind]
    connection = await CONNECTS[kind](url)

    async def pair(key: str) -> None:
        id = plain_id(key)
        assert await claim(connection, id)
        assert await complete(connection, id)

    yield pair
    await connection.close()


async def run(kind: str, url: str, ways: int, seconds: float) -> Probed:
    """Make pairs for so long, after a warm-up."""
    made = semel_pairs if kind == "calls" else plain_pairs
    async with made(url) as pair:
        seed = time.time_ns()
        await _crowd(pair, f"{seed}-warm", ways, WARMUP_SECONDS)
        started, cpu = time.perf_counter(), time.process_time()
        pairs = await _crowd(pair, f"{seed}-timed", ways, seconds)
        wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    return Probed(pairs / wall, cpu / pairs * 1e6)


async def _crowd(pair: Pair, seed: str, ways: int, seconds: float) -> int:
    ends = time.perf_counter() + seconds

    async def one(way: int) -> int:
        made = 0
        while time.perf_counter() < ends:
            await pair(f"{seed}-{way}-{made}")
            made += 1
        return made

    return sum(await asyncio.gather(*(one(way) for way in range(ways))))


def main() -> None:
    """Count as given on the command line."""
    kind, url, ways, seconds = json.loads(sys.argv[1])
    if kind == "calls":
        migrate(for_semel(url))
    else:
        make_plain_table(url)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        probed: Any = runner.run(run(kind, url, ways, seconds))
    print(json.dumps({"pairs_per_second": probed.pairs_per_second, "pair_cpu_us": probed.pair_cpu_us}))


if __name__ == "__main__":
    main()
