"""A bulk of six items in its own process: ``python -m tests.bulk.declared URL LEDGER EFFECTS DIES_AT``.

EFFECTS such as ``external``. Each call of the handler is a line of the ledger; the process kills itself in the handler
of the item at DIES_AT.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from semel import Bulk, Engine
from semel.bulk.declaration import BulkItem
from semel.stores.urls import connect_backend
from tests.bulk.lists import die, number_items

ITEMS = 6


def run_declared(url: str, ledger: Path, effects: Any, *, dies_at: int = -1) -> list[str]:
    """Run it on its own engine: its tally, whether it was a replay, and the items' states."""
    with Engine(connect_backend(url)) as engine:
        bulk = Bulk(engine, operation="count", effects=effects, lease_seconds=1)

        def handler(item: BulkItem) -> None:
            with ledger.open("a") as calls:
                calls.write(f"{item.place}\n")
            if item.place == dies_at:
                die()

        done = bulk.run(number_items(ITEMS), handler, key="k", caller="alice", wait_seconds=60)
        states = [outcome.state.name for outcome in bulk.outcomes(done.operation_id)]
        return [*map(str, done.tally), str(done.replayed), *states]


if __name__ == "__main__":
    run_declared(sys.argv[1], Path(sys.argv[2]), sys.argv[3], dies_at=int(sys.argv[4]))
