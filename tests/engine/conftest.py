"""An engine on a SQLite file with a table of the application's own, in both forms."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from semel.testing.clock import SettableClock
from tests.engine.drivers import sqlite
from tests.engine.shells import Mode, Shell


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with a table of the application's own."""
    with closing(sqlite3.connect(tmp_path / "semel.db")) as connection:
        connection.execute("CREATE TABLE effect (n INTEGER)")
    return tmp_path / "semel.db"


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> Mode:
    given: Mode = request.param
    return given


@pytest.fixture
def shell(mode: Mode, file: Path, clock: SettableClock) -> Iterator[Shell]:
    """An engine on SQLite."""
    made = Shell(mode, sqlite(file, clock))
    made.open()
    yield made
    made.close()
