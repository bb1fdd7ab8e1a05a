"""What an upload of 2 GiB costs in memory: sent, kept, and opened again, as it is and sealed; its digest is right, too.

    python -m tests.imports.soak [--mib 2048] [--folder FOLDER]

The folder needs three times as much room. Prints a line of JSON for each; ends with 1 where memory grew by 64 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from semel import AsyncEngine, Sealer
from semel.core.identity import uuid_bytes
from semel.imports import FolderContent, Imports

MIB: Final = 1024 * 1024
GROWN_MIB_MAX: Final = 64


def peak_mib() -> float:
    """The most that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def send(folder: str, mib: int, answers: Any) -> dict[str, Any]:
    """Send a file, and open what was kept of it."""
    block = os.urandom(MIB)
    hashing = hashlib.sha256()

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(mib):
            piece = number.to_bytes(8, "big") + block[8:]
            hashing.update(piece)
            yield piece

    async def small() -> AsyncIterator[bytes]:
        yield b"n\n" + block

    engine = AsyncEngine.connect(f"sqlite:///{folder}/soak.db", sealer=Sealer({"2026": bytes(32)}))
    await engine.migrate()
    async with engine:
        content = FolderContent(f"{folder}/kept")
        imports = Imports(
            engine,
            operation="soak",
            content=content,
            answers=answers,
            spool_folder=folder,
            file_bytes_max=mib * MIB + MIB,
        )
        await imports.submit(small(), supplier="ACME")  # what is loaded once
        before, started = peak_mib(), time.perf_counter()
        job = await imports.submit(pieces(), supplier="ACME")
        sent = time.perf_counter() - started
        found = await engine.perform("soak", lambda: imports.rows_kept.by_id(uuid_bytes(job.id) or b""))
        assert found is not None
        async with imports.files.open(found) as file:
            assert file.seek(0, os.SEEK_END) == mib * MIB
        assert job.sha256 == hashing.hexdigest()
        return {
            "mib": mib,
            "answers": answers,
            "grown_mib": round(peak_mib() - before, 1),
            "sent_mib_per_second": round(mib / sent, 1),
        }


def play(folder: str, mib: int, answers: str) -> None:
    """In a process of its own, whose peak is its own."""
    told = asyncio.run(send(folder, mib, answers))
    print(json.dumps(told), flush=True)
    sys.exit(told["grown_mib"] >= GROWN_MIB_MAX)


def main() -> int:
    """Both forms, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--folder", help="where to write (default: the system's for temporary files)")
    options = parser.parse_args()
    failed = 0
    for answers in ("keep", "seal"):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            process = multiprocessing.get_context("spawn").Process(target=play, args=(folder, options.mib, answers))
            process.start()
            process.join()
            failed |= process.exitcode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
