"""Real processes and SIGKILL at every point between the first byte and the job's end; uploads from three processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bulk.fellows import Home, mariadb_home, postgres_home, sqlite_home
from tests.imports.nursery import CHUNK, FILE, ROWS, SEALS
from tests.servers import mariadb as maria
from tests.servers.postgres import postgres, schema

POINTS = ("half spooled", "stored", "not run", "row 5", "before 1", "after 1", "row 15", "after 1", "row 21", "after 2")


class Nursery:
    """A process that forks children; the database is looked at from outside."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder = folder / "kept"
        self.seals = kind == SEALS
        if kind == "sqlite":
            self.home: Home = sqlite_home(str(folder / "imports.db"))
            where, kept = f"sqlite:///{folder / 'imports.db'}", str(self.folder)
        elif kind in ("asyncpg", "psycopg"):
            self.home, where, kept = postgres_home(), f"{postgres()} {schema()}", ""
        else:
            self.home, where, kept = mariadb_home(), maria.url(maria.mariadb()), ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.imports.nursery", kind, where, kept],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, point: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{point}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end_leases(self) -> None:
        """End the leases, as if the killed processes had died longer ago."""
        self.home.fetch("UPDATE semel_import SET next_at = 0")
        self.home.fetch("UPDATE semel_record SET lease_until = 1 WHERE state = 1")

    def count(self, text: str) -> int:
        return int(self.home.fetch(text)[0][0])


@pytest.fixture(params=["sqlite", "asyncpg", "psycopg", "asyncmy"])
def nursery(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery(request.param, tmp_path)
    yield made
    made.process.communicate("")
    assert made.process.returncode == 0


def test_a_job_survives_a_kill_at_every_point_and_books_each_row_once(nursery: Nursery) -> None:
    committed = 0
    for number, point in enumerate(POINTS):
        code, _ = nursery.ask(point)
        assert code == -signal.SIGKILL, point
        booked = nursery.home.effects()
        assert booked == list(range(len(booked))), point
        assert len(booked) % CHUNK == 0
        assert len(booked) >= committed
        committed = len(booked)
        assert nursery.count("SELECT count(*) FROM semel_import") == int(number >= 2), point
        nursery.end_leases()
    assert committed == ROWS
    code, _ = nursery.ask("not ended")
    assert code == -signal.SIGKILL
    assert nursery.count("SELECT state FROM semel_import") == 2
    nursery.end_leases()
    code, job = nursery.ask("never")
    assert (code, job["state"]) == (0, "DONE")
    assert job["counts"] == {"rows": ROWS, "done": ROWS, "booked": ROWS, "skipped": 0, "failed": 0, "unknown": 0}
    assert nursery.home.effects() == list(range(ROWS))
    assert nursery.count("SELECT count(*) FROM semel_import_row") == ROWS
    assert nursery.count("SELECT count(*) FROM semel_import") == 1
    kept = [path for path in nursery.folder.glob("**/*") if path.is_file()]
    blobs = nursery.count("SELECT count(*) FROM semel_import_blob WHERE whole > 0")
    assert len(kept) + blobs == 1  # nothing of the half or of the orphaned uploads
    if blobs and nursery.seals:
        assert nursery.count("SELECT count(*) FROM semel_import_part") == 1
    elif blobs:
        assert nursery.count("SELECT sum(length(body)) FROM semel_import_part") == len(FILE)


def test_twenty_uploads_of_three_processes_are_one_job(nursery: Nursery) -> None:
    ends = nursery.ask("many")
    assert [code for code, _ in ends] == [0, 0, 0]
    jobs = [job for _, told in ends for job in told]
    assert len(jobs) == 20
    assert len({id for id, _ in jobs}) == 1
    assert [is_new for _, is_new in jobs].count(True) == 1
    assert nursery.count("SELECT submissions FROM semel_import") == 20
    assert nursery.count("SELECT count(*) FROM semel_import_name") == 2
    code, job = nursery.ask("never")
    assert (code, job["state"], job["counts"]["booked"]) == (0, "DONE", ROWS)
