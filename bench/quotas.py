"""What counting new keys costs, as ratios to the same commands without a quota: ``python -m bench.quotas --url URL``.

Fresh commands of an engine, 32 at once, in turns with and without: one caller, whose claims all go through one counter;
many callers, each with its own; and a caller whose unfinished commands are bounded as well.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import time
from statistics import median

from semel import Answer, AsyncEngine, Command, Permit, Policy, Quota, Scope

ANSWER = Answer(201, (), b"made")
NEVER = Quota(new_keys=10_000_000, per_seconds=60)
BOUNDED = Quota(new_keys=10_000_000, per_seconds=60, open_at_once=100)
KINDS = {"one caller": (NEVER, 1), "1,000 callers": (NEVER, 1000), "one caller, open_at_once": (BOUNDED, 1)}


async def rate(url: str, quota: Quota | None, callers: int, commands: int, connections: int) -> float:
    """Fresh commands a second."""
    policy, batch = Policy(), os.urandom(4).hex()
    async with AsyncEngine.connect(url, quota=quota) as engine:

        async def handler(permit: Permit) -> Answer:
            return ANSWER

        async def client(number: int) -> None:
            for count in range(number, commands, connections):
                scope = Scope("bench", f"caller-{count % callers}", "pay")
                key = f"{batch}-{count}"
                fingerprint = hashlib.sha256(key.encode()).digest()
                await engine.run(Command(scope, key, fingerprint, "1.bench", policy), handler)

        started = time.perf_counter()
        await asyncio.gather(*[client(number) for number in range(connections)])
        return commands / (time.perf_counter() - started)


async def measure(url: str, rounds: int, commands: int, connections: int) -> dict[str, float]:
    """The median ratio of each kind."""
    engine = AsyncEngine.connect(url)
    await engine.migrate()
    await engine.close()
    ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind, (quota, callers) in KINDS.items():
            bare = await rate(url, None, callers, commands, connections)
            ratios[kind].append(await rate(url, quota, callers, commands, connections) / bare)
    return {kind: round(median(each), 2) for kind, each in ratios.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--url", default="sqlite:///quotas.db", help="the store; it keeps the records (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commands", type=int, default=3000, help="a round and kind (default: %(default)s)")
    parser.add_argument("--connections", type=int, default=32)
    given = parser.parse_args()
    found = asyncio.run(measure(given.url, given.rounds, given.commands, given.connections))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
