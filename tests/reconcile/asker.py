"""A process whose reconciler never hears back: it says that it asks, and waits to be killed."""

from __future__ import annotations

import asyncio
import sys

from semel import AsyncEngine
from semel.reconciliation.worker import Case, Finding, Reconciling, StillUnknown, reconciler


@reconciler("pay", quiet_for=0)
async def hangs(case: Case) -> Finding:
    print(f"asking {case.operation_id}", flush=True)
    await asyncio.Event().wait()
    return StillUnknown("never reached")


async def main(url: str) -> None:
    async with AsyncEngine.connect(url) as engine:
        await Reconciling(engine, [hangs]).run_once()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
