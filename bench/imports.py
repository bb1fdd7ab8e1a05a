"""What an import costs beside its bare parts, as ratios: ``python -m bench.imports``.

Hashing and spooling an upload beside ``sha256sum`` plus ``cp`` of the same file; booking rows beside a bulk of the same
rows on the same store; a duplicate upload beside the hash of its file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from semel import AsyncBulk, AsyncEngine
from semel.imports import Csv, Imports
from semel.imports.upload import Upload
from semel.stores.urls import connect_backend

MIB = 1024 * 1024
ROUNDS = 5


def spooling(folder: Path, mib: int) -> dict[str, float]:
    """MiB a second of an upload from a path, and its rate beside sha256sum and cp one after the other."""
    source, copy = folder / "source", folder / "copy"
    with source.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(MIB))
    bare = own = math.inf
    for _ in range(ROUNDS):  # in turns, the best of each: other writers of the disk slow down either
        started = time.perf_counter()
        subprocess.run(["sha256sum", source], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["cp", source, copy], check=True)
        bare = min(bare, time.perf_counter() - started)
        copy.unlink()
        started = time.perf_counter()
        with Upload(2048 * MIB, str(folder)) as upload:
            asyncio.run(upload.take(source))
        own = min(own, time.perf_counter() - started)
    return {"mib_per_second": mib / own, "of_sha256sum_and_cp": bare / own}


async def booking(url: str, rows: int) -> dict[str, float]:
    """Rows a second, and their rate beside a bulk's items; what a duplicate costs beside its hash."""
    engine = AsyncEngine(connect_backend(url))
    await engine.migrate()
    async with engine:
        table = f"bench_{time.time_ns()}"
        text = f"INSERT INTO {table} VALUES ({'?' if url.startswith('sqlite') else '%s'})"

        async def execute(connection: Any, *said: Any) -> None:
            done = connection.execute(*said)
            if hasattr(done, "__await__"):
                await done

        async def insert(item: Any) -> None:
            value = item.value["n"] if isinstance(item.value, dict) else item.value
            await execute(item.connection, text, (int(value),))

        async def create(item: Any) -> None:
            await execute(item.connection, f"CREATE TABLE {table} (n bigint)")

        bulk = AsyncBulk(engine, operation="bench.bulk", effects="atomic", member=None)
        await bulk.run([0], create, key=f"table-{table}", caller="bench")
        lines: Iterator[bytes] = (b'{"n":"%d","note":"some more text"}' % n for n in range(rows))
        started = time.perf_counter()
        await bulk.run(lines, insert, key=table, caller="bench")
        plain = time.perf_counter() - started
        imports = Imports(engine, operation=table, formats=[Csv()])
        imports.row(insert)
        file = b"n,note\n" + b"".join(b"%d,some more text\n" % n for n in range(rows))
        await imports.submit(file, supplier="ACME")
        started = time.perf_counter()
        await imports.run_due()
        own = time.perf_counter() - started
        started = time.perf_counter()
        for _ in range(20):
            await imports.submit(file, supplier="ACME")
        duplicate = (time.perf_counter() - started) / 20
        started = time.perf_counter()
        for _ in range(20):
            with Upload(len(file)) as upload:
                await upload.take(file)
        hashed = (time.perf_counter() - started) / 20
    return {
        "rows_per_second": rows / own,
        "of_bulk": plain / own,
        "duplicate_ms": duplicate * 1000,
        "of_it_hash_ms": hashed * 1000,
    }


def main() -> None:
    """Print a line of JSON a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a store's URL; a SQLite file in a temporary folder where none is given")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--mib", type=int, default=512)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({"mib": options.mib, **spooling(Path(folder), options.mib)}))
        url = options.url or f"sqlite:///{folder}/bench.db"
        print(json.dumps({"rows": options.rows, **asyncio.run(booking(url, options.rows))}))


if __name__ == "__main__":
    main()
