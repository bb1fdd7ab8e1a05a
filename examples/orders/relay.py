"""The relay: ``python -m examples.orders.relay`` tells the warehouse of every event that is waiting, and ends.

``semel worker --sink python:examples.orders.warehouse:deliver`` does the same until it is stopped. Here the lease
is short: what a relay was about when it was killed is taken over two seconds later, not ten.
"""

from __future__ import annotations

import asyncio

from examples.orders.app import URL
from examples.orders.warehouse import deliver
from semel import AsyncEngine, AsyncOutbox
from semel.workers import FunctionSink, Relay

LEASE_SECONDS = 2
LOOK_SECONDS = 0.1


async def main() -> None:
    """Until no event waits."""
    published = 0
    async with AsyncEngine.connect(URL) as engine:
        relay = Relay(engine, FunctionSink(deliver), lease_seconds=LEASE_SECONDS)
        while (await AsyncOutbox(engine).depth()).waiting:
            published += await relay.run_once()
            await asyncio.sleep(LOOK_SECONDS)
    print(f"published {published} events")


if __name__ == "__main__":
    asyncio.run(main())
