"""How fast a bulk is with a trivial handler, and what memory it takes: ``python -m bench.bulk``.

One INSERT an item, in the chunk's transaction. ``--url`` measures one store; ``--items`` how many. Each measurement
is a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from semel import Bulk, Engine, ItemFailed
from semel.bulk.declaration import BulkItem
from semel.stores.urls import connect_backend

TABLE = "CREATE TABLE IF NOT EXISTS bench_effect (n bigint PRIMARY KEY)"


def one(url: str, items: int, failing: int, chunk: int, *, pipelined: bool) -> dict[str, float]:
    """One bulk; figures in items a second, seconds and MiB. Every ``failing``-th item fails after it wrote."""
    engine = Engine(connect_backend(url))
    engine.migrate()
    with engine:
        bulk = Bulk(engine, operation="bench", effects="atomic", chunk_items=chunk, pipelined=pipelined)
        bulk.run([0], _table, key=f"table-{time.time_ns()}", caller="bench")
        text = (
            "INSERT INTO bench_effect VALUES (?)"
            if url.startswith("sqlite")
            else "INSERT INTO bench_effect VALUES (%s)"
        )
        base = time.time_ns()

        def insert(item: BulkItem) -> None:
            n = item.value["n"]
            execute = getattr(item.connection, "execute", None) or item.connection.cursor().execute
            execute(text, (base + n,))
            if failing and n % failing == 0:
                raise ItemFailed("NO")

        lines: Any = (b'{"clientItemId":"i-%d","n":%d,"note":"some more text"}' % (n, n) for n in range(items))
        started = time.perf_counter()
        done = bulk.run(lines, insert, key=f"key-{time.time_ns()}", caller="bench")
        seconds = time.perf_counter() - started
    assert done.tally.done == items
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"items_per_second": items / seconds, "seconds": seconds, "mib": memory, "failed": done.tally.failed}


def _table(item: BulkItem) -> None:
    execute = getattr(item.connection, "execute", None) or item.connection.cursor().execute
    execute(TABLE)


def main() -> None:
    """Print one line of JSON a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a store's URL; a SQLite file in a temporary folder where none is given")
    parser.add_argument("--items", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--failing", type=int, default=0, help="every n-th item fails after it has written")
    parser.add_argument("--chunk", type=int, default=500)
    parser.add_argument("--pipelined", action="store_true", help="statements travel together (PostgreSQL)")
    parser.add_argument("--here", action="store_true", help="measure in this process")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or f"sqlite:///{Path(folder, 'bench.db')}"
        for items in options.items:
            if options.here:
                measured = one(url, items, options.failing, options.chunk, pipelined=options.pipelined)
                print(json.dumps({"items": items, **measured}))
                continue
            asked = [
                "--url",
                url,
                "--items",
                str(items),
                "--failing",
                str(options.failing),
                "--chunk",
                str(options.chunk),
            ]
            asked += ["--pipelined"] if options.pipelined else []
            subprocess.run([sys.executable, "-m", "bench.bulk", "--here", *asked], check=True)


if __name__ == "__main__":
    main()
