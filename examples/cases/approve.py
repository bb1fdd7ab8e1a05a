"""Approve a list of cases: one key for the list, one durable outcome for each case, whatever happens on the way.

``python -m examples.cases.approve list.jsonl --key monday`` does it, and after a crash goes on where it stopped.
``--again monday`` takes of the list only what failed there and may be tried again. ``--die-at 120`` ends the process
at the 120th case, as a power cut would.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from examples.cases import register
from semel import Bulk, BulkItem, BulkResult, Engine, ItemState
from semel.errors import BulkRefused, SemelError

CALLER = "alice"
LEASE_SECONDS = 2  # renewed while it runs: so long after a crash the next run can begin
WAIT_SECONDS = 10  # so long it waits for a run that is under way, or was


def bulk_on(engine: Engine) -> Bulk:
    """The operation: an approval is a row, so that 25 of them and their outcomes are one transaction."""
    return Bulk(
        engine, operation="cases.approve", effects="atomic", member="case", chunk_items=25, lease_seconds=LEASE_SECONDS
    )


def approve(engine: Engine, options: argparse.Namespace) -> BulkResult:
    """Run it, or go on with it. Raises SemelError."""
    seen = 0

    def handle(item: BulkItem) -> str:
        nonlocal seen
        seen += 1
        if seen == options.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return register.approve(item.connection, item.id, options.caller)

    bulk = bulk_on(engine)
    items: Iterable[Any] | Path = options.file
    if options.again is not None:
        before = bulk.operation_id(key=options.again, caller=options.caller)
        if before is None:
            raise BulkRefused(None, None, f"no list has the key {options.again}", "NO_SUCH_KEY")
        items = bulk.retryable(before, options.file)
    done = bulk.run(items, handle, key=options.key, caller=options.caller, wait_seconds=WAIT_SECONDS)
    print(f"handled in this run: {seen}{' (replayed)' if done.replayed else ''}")
    return done


def tell(engine: Engine, done: BulkResult) -> None:
    """How it ended."""
    print(f"operation {done.operation_id}: {done.tally.succeeded} of {done.tally.total} approved")
    failed = bulk_on(engine).outcomes(done.operation_id, state=ItemState.FAILED)
    for (code, retryable), count in Counter((each.error_code, each.retryable) for each in failed).items():
        print(f"  {code}: {count}, {'may be retried' if retryable else 'final'}")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Approve a list of cases, once.")
    parser.add_argument("file", type=Path, help='JSON lines, such as {"case": "case-0001"}')
    parser.add_argument("--key", required=True, help="of the list: the same for every attempt at it")
    parser.add_argument("--caller", default=CALLER)
    parser.add_argument("--again", metavar="KEY", help="only what failed there and may be tried again")
    parser.add_argument("--die-at", type=int, metavar="N", help="end by SIGKILL at the n-th case of this run")
    options = parser.parse_args()
    try:
        with Engine.connect(register.URL) as engine:
            tell(engine, approve(engine, options))
    except SemelError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
