"""The processes that `semel demo` starts and kills: a bulk command and a relay.

``python -m semel.reference.demo.dying bulk URL LEDGER DIE_AT`` handles a list; ``relay`` publishes events into the
ledger, a file with a line for each delivery. The process kills itself at the n-th item or delivery (SIGKILL); 0: never.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Final

from semel.bulk.declaration import BulkItem
from semel.bulk.run_sync import Bulk
from semel.engine.async_engine import AsyncEngine
from semel.engine.sync_engine import Engine
from semel.outbox.event import Event
from semel.outbox.sinks.function import FunctionSink
from semel.outbox.worker import Relay

ITEMS: Final = 60
CHUNK: Final = 10
LEASE_SECONDS: Final = 1.0
KEY: Final = "close-of-business"
TABLE: Final = "CREATE TABLE IF NOT EXISTS demo_approvals (number INTEGER)"


class Doom:
    """A countdown that kills the process."""

    def __init__(self, die_at: int) -> None:
        self._left = die_at

    def passing(self) -> None:
        """Count one item or delivery, and kill the process at the last."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def bulk_on(engine: Engine) -> Bulk:
    """Make the bulk: each transaction holds ten approvals and their outcomes."""
    return Bulk(engine, operation="demo.approve", effects="atomic", chunk_items=CHUNK, lease_seconds=LEASE_SECONDS)


def approve(url: str, doom: Doom) -> None:
    """Approve a list, or continue it."""

    def handle(item: BulkItem) -> str:
        doom.passing()
        item.connection.execute("INSERT INTO demo_approvals VALUES (?)", (item.value,))
        return f"approval-{item.value}"

    with Engine.connect(url) as engine:
        bulk_on(engine).run(range(ITEMS), handle, key=KEY, caller="alice", tenant="demo", wait_seconds=10)


async def publish(url: str, ledger: Path, doom: Doom) -> None:
    """Deliver every event that waits."""

    def deliver(event: Event) -> None:
        with ledger.open("a") as file:
            file.write(f"{event.id}\n")
        doom.passing()

    async with AsyncEngine.connect(url) as engine:
        relay = Relay(engine, FunctionSink(deliver), lease_seconds=LEASE_SECONDS)
        while (await relay.gauge()).waiting:
            await relay.run_once()
            await asyncio.sleep(LEASE_SECONDS / 10)


def main() -> None:
    """Run the command line's action."""
    what, url, ledger, die_at = sys.argv[1:]
    doom = Doom(int(die_at))
    if what == "bulk":
        approve(url, doom)
    else:
        asyncio.run(publish(url, Path(ledger), doom))


if __name__ == "__main__":
    main()
