"""The reconciler: asks the provider what became of payments whose outcome is UNKNOWN, and settles them.

``python -m examples.payments.reconcile`` asks once about each that is due. In production ``Reconciling`` goes on beside
the application (``async with Reconciling(engine, [ask_provider]):``), or in a worker.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

from examples.payments import books, charging
from semel import Answer, AsyncEngine
from semel.workers import Case, DidNotHappen, Finding, Reconciling, SucceededWith, reconciler

QUIET_SECONDS = 60  # longer than the provider keeps a request in its queues: until then "no charge" proves nothing


@reconciler("payments.create", quiet_for=QUIET_SECONDS)
async def ask_provider(case: Case) -> Finding:
    """The provider knows, by the key that the handler gave it."""
    charge = await charging.find(case.key_for("charge"))
    if charge is None:
        return DidNotHappen("the provider has no charge under this key")
    with closing(sqlite3.connect(books.FILE)) as db, db:
        payment = books.close(db, case.operation_id, charge.id)  # what the handler did not come to; safe to repeat
    answer = Answer(201, ((b"content-type", b"application/json"),), payment.model_dump_json().encode())
    return SucceededWith(answer, resource=("payment", payment.id), reason=f"the provider has charged {charge.id}")


async def main() -> None:
    """Ask once about each payment that is due."""
    async with AsyncEngine.connect(books.URL) as engine:
        done = await Reconciling(engine, [ask_provider]).run_once()
    print(f"asked about {done.asked}, settled {done.settled}")


if __name__ == "__main__":
    asyncio.run(main())
