"""What redis-server spends on a claim, a settlement and a replay: its own CPU time, in batches of one size.

``python -m bench.redis_cpu --port PORT --pid PID [--batch 16] [--rounds 200]`` asks an empty redis-server without
persistence on this machine, as ``redis-server --port PORT --save ''`` starts one, and prints the least and the median
of the rounds: the CPU time of the process, as ``/proc`` has it. Other work on the machine makes it longer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from semel import Answer, Command, Engine, Policy, Scope
from semel.core.command_flow import make_settlement
from semel.core.flow import Flow
from semel.core.model import Proceed, Replay, Settled
from semel.core.outcomes import Succeeded

_ANSWER = Answer(201, ((b"content-type", b"application/json"),), b'{"payment": "pay_1", "status": "done"}')


def cpu_us(pid: int) -> float:
    """Microseconds of CPU that the main thread of a process has taken so far."""
    return int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[0]) / 1_000


def measure(port: int, pid: int, batch: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds of the server each, of every round. Raises RuntimeError: a reply was not what it must be."""
    found: dict[str, list[float]] = {"claim": [], "settle": [], "replay": []}
    seed, scope, policy = time.time_ns(), Scope("single", "single", "POST /payments"), Policy()
    engine = Engine.connect(f"redis://127.0.0.1:{port}/0?persistence=none&prefix=bench")
    engine.migrate()
    with engine:

        def time_flow(name: str, wanted: type, make: Callable[[], Flow[list[Any]]]) -> list[Any]:
            before = cpu_us(pid)
            replies: list[Any] = engine.backend.driver.run(make)
            found[name].append((cpu_us(pid) - before) / batch)
            if {type(reply) for reply in replies} != {wanted}:
                raise RuntimeError(f"a {name} was answered with something else")
            return replies

        store = engine.store
        for number in range(rounds):
            commands = [Command(scope, f"{seed}-{number}-{way}", bytes(32), "bench", policy) for way in range(batch)]
            claims = [engine.core.attempt(command) for command in commands]
            granted = time_flow("claim", Proceed, lambda claims=claims: store.claim(claims))  # type: ignore[misc]
            settlements = [make_settlement(verdict.grant, Succeeded(_ANSWER)) for verdict in granted]
            time_flow("settle", Settled, lambda settlements=settlements: store.settle(settlements))  # type: ignore[misc]
            time_flow("replay", Replay, lambda claims=claims: store.claim(claims))  # type: ignore[misc]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.redis_cpu", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="of the server")
    parser.add_argument("--pid", type=int, required=True, help="its process")
    parser.add_argument("--batch", type=int, default=16, help="requests of a batch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="batches of each (default: %(default)s)")
    options = parser.parse_args(arguments)
    print("| redis-server's CPU µs | least | median |\n| --- | ---: | ---: |")
    for name, each in measure(options.port, options.pid, options.batch, options.rounds).items():
        print(f"| {name} | {min(each):.1f} | {statistics.median(each):.1f} |")


if __name__ == "__main__":
    main()
