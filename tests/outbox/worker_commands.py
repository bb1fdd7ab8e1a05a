"""Runs ATOMIC commands on a store: ``python -m tests.outbox.worker_commands URL COUNT AGGREGATES``.

Each command writes a row and an event with the row's number; the numbers of an aggregate grow in the order of commits.
"""

from __future__ import annotations

import sys

from semel import Answer, Engine, Permit, Policy
from tests.engine.shells import command


def main() -> None:
    url, count, aggregates = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with Engine.connect(url) as engine:
        for n in range(count):

            def handler(permit: Permit, n: int = n) -> Answer:
                permit.connection.execute(f"INSERT INTO effect VALUES ({n})")
                permit.emit("orders", {"n": n}, aggregate=("order", str(n % aggregates)))
                return Answer(201, (), b"")

            engine.run(command(f"k{n}", policy=Policy(effects="atomic")), handler)


if __name__ == "__main__":
    main()
