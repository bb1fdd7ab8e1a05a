"""Real processes, killed at every numbered point of a run with steps; another one takes over."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from semel import Engine
from semel.errors import OutcomeUnknownError
from tests.servers.postgres import postgres, schema
from tests.steps.conftest import step_command
from tests.steps.dying import POINTS, Handler, backend
from verification.subjects.postgres import empty_schema

IN_DOUBT = {"after a start, before its call", "after a call, before its result", "between steps", "in local writes"}
MAILED_TWICE = {"after a repeatable call", "before the settlement"}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store with the application's table in it."""
    if request.param == "sqlite":
        made = str(tmp_path / "semel.db")
        with closing(Engine(backend(made, ""))) as engine:
            engine.migrate()
        with closing(sqlite3.connect(made)) as db:
            db.execute("CREATE TABLE effect (n INTEGER)")
            db.commit()
    else:
        made = postgres()
        empty_schema(made, schema())
        with closing(Engine(backend(made, schema()))) as engine:
            engine.migrate()
        with psycopg.connect(made, autocommit=True, options=f"-c search_path={schema()}") as outside:
            outside.execute("CREATE TABLE effect (n integer)")
    return made


def rows(url: str) -> int:
    if url.startswith("postgresql"):
        with psycopg.connect(url, options=f"-c search_path={schema()}") as outside:
            return int(outside.execute("SELECT count(*) FROM effect").fetchall()[0][0])
    with closing(sqlite3.connect(url)) as db:
        return int(db.execute("SELECT count(*) FROM effect").fetchall()[0][0])


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_killed_at_every_point(point: str, url: str, tmp_path: Path) -> None:
    log = tmp_path / "effects"
    log.touch()
    died = subprocess.run([sys.executable, "-m", "tests.steps.dying", url, schema(), str(log), point], check=False)
    assert died.returncode == (0 if point == "never" else -signal.SIGKILL)

    def later() -> int:
        return time.time_ns() // 1_000 + 60_000_000  # the lease is over

    handler = Handler(str(log), "never")
    with closing(Engine(backend(url, schema(), later))) as engine:
        if point in IN_DOUBT:
            with pytest.raises(OutcomeUnknownError, match="step:charge"):
                engine.run(step_command(), handler)
        else:
            assert engine.run(step_command(), handler).answer.body == b"done"
        assert len(engine.perform("lapse", lambda: engine.store.lapse(10))) == (point in IN_DOUBT)
    lines = log.read_text().splitlines()
    mails = [line for line in lines if line.startswith("mail")]
    assert lines.count("charge") == (0 if point == "after a start, before its call" else 1)
    assert rows(url) == (0 if point in IN_DOUBT else 1)
    assert len(set(mails)) == (0 if point in IN_DOUBT else 1)
    assert len(mails) == (0 if point in IN_DOUBT else 2 if point in MAILED_TWICE else 1)
