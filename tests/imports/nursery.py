"""Uploads and runs in processes that are killed at named points: `python -m tests.imports.nursery KIND WHERE FOLDER`.

Each line on stdin is a point (or `never`): a forked child submits the file, runs what is due, and kills itself
there. `many` has three children submit the file twenty times in all. The answer is a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from semel import AsyncEngine, Sealer
from semel.core.requests import Commit, SettleWithin
from semel.engine.runner import AsyncPerformer
from semel.imports import FolderContent, Imports, Row
from semel.stores.backend import Backend
from semel.stores.urls import connect_backend
from tests.bulk.fellows import write
from tests.imports.places import csv_of

ROWS: Final = 40
CHUNK: Final = 10
FILE: Final = csv_of(*range(ROWS))
SEALS: Final = "psycopg"  # the one whose files and rows are sealed
RING: Final = {"2026": bytes(32)}


def backend_of(kind: str, where: str) -> Backend:
    """The database, which the parent has migrated."""
    if kind in ("asyncpg", "psycopg"):
        from semel.stores.postgres.url import postgres_backend

        url, _, schema = where.partition(" ")
        return postgres_backend(url, asyncpg=kind == "asyncpg", schema=schema)
    return connect_backend(where)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def pieces(point: str) -> AsyncIterator[bytes]:
    yield FILE[:20]
    if point == "half spooled":
        die()
    yield FILE[20:]


def imports_of(engine: AsyncEngine, folder: str, point: str) -> Imports:
    content = FolderContent(folder) if folder else None
    imports = Imports(
        engine,
        operation="stock.import",
        chunk_items=CHUNK,
        content=content,
        rows="skip-known",
        lease_seconds=1,
        answers="keep" if engine.core.sealer is None else "seal",
    )

    @imports.row
    async def book(row: Row) -> None:
        await write(row, int(row.value["n"]))  # type: ignore[arg-type]
        if point == f"row {row.number}":
            die()

    return imports


def _die_around_commits(kind: str, number: int) -> None:
    """Before or after the n-th chunk's commit: the flow's own last ask is where it happens."""
    real: Callable[..., Any] = AsyncPerformer.drive
    seen = [0]

    async def drive(self: AsyncPerformer, flow: Any, *more: Any) -> Any:
        needed = flow.gi_frame.f_locals.get("needed")  # `ask(needed)`: a flow of one ask
        if type(needed) not in (Commit, SettleWithin):
            return await real(self, flow, *more)
        seen[0] += 1
        if (kind, number) == ("before", seen[0]):
            die()
        reply = await real(self, flow, *more)
        if (kind, number) == ("after", seen[0]):
            die()
        return reply

    setattr(AsyncPerformer, "drive", drive)  # noqa: B010 - a method of a class that is typed otherwise


def engine_of(kind: str, where: str) -> AsyncEngine:
    return AsyncEngine(backend_of(kind, where), sealer=Sealer(RING) if kind == SEALS else None)


async def act(kind: str, where: str, folder: str, point: str) -> dict[str, Any]:
    async with engine_of(kind, where) as engine:
        imports = imports_of(engine, folder, point)
        word, _, number = point.partition(" ")
        if word in ("before", "after"):
            _die_around_commits(word, int(number))
        if point == "stored":
            kept = imports.content.write

            async def write_and_die(digest: str, file: Any) -> None:
                await kept(digest, file)
                die()

            imports.content.write = write_and_die  # type: ignore[method-assign]
        job = await imports.submit(pieces(point), supplier="ACME", filename=f"{point}.csv")
        if point == "not run":
            die()
        if point == "not ended":
            imports._end = lambda *_: die()  # type: ignore[method-assign,assignment]
        await imports.run_due()
        done = await imports.job(job.id)
        assert done is not None
        return done.document()


async def submit_many(kind: str, where: str, folder: str, number: int) -> list[tuple[str, bool]]:
    async with engine_of(kind, where) as engine:
        imports = imports_of(engine, folder, "never")
        count = 6 if number == 2 else 7
        jobs = await asyncio.gather(
            *(imports.submit(FILE, supplier="ACME", filename=f"{n % 2}.csv", client_key=f"{n}") for n in range(count))
        )
        return [(job.id, job.is_new) for job in jobs]


def fork(work: Callable[[], Any]) -> tuple[int, int]:
    """A child that does it and writes what it returned; its pid, and where to read."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    code = 1
    try:
        os.write(writing, json.dumps(work()).encode())
        code = 0
    finally:
        os._exit(code)


def wait(pid: int, reading: int) -> tuple[int, Any]:
    with os.fdopen(reading) as file:
        said = file.read()
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), json.loads(said) if said else None


def main(kind: str, where: str, folder: str) -> None:
    for line in sys.stdin:
        point = line.strip()
        if point == "many":
            made = [fork(lambda n=n: asyncio.run(submit_many(kind, where, folder, n))) for n in range(3)]  # type: ignore[misc]
            ends: Any = [wait(*each) for each in made]
        else:
            ends = wait(*fork(lambda: asyncio.run(act(kind, where, folder, point))))  # noqa: B023 - at once
        print(json.dumps(ends), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
