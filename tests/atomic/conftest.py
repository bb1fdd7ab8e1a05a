"""A migrated file with the application's own tables, engines on it, and a view from outside."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from semel.testing.clock import SettableClock
from tests.engine.drivers import sqlite
from tests.engine.shells import Mode, Shell
from tests.servers.files import migrated_file

MakeShell = Callable[[], Shell]


class Outside:
    """Another connection to the file: what it sees, and what it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self, table: str = "effect") -> list[int]:
        with closing(sqlite3.connect(self.path)) as connection:
            return [n for (n,) in connection.execute(f"SELECT n FROM {table} ORDER BY n")]

    @property
    def states(self) -> list[int]:
        with closing(sqlite3.connect(self.path)) as connection:
            return [state for (state,) in connection.execute("SELECT state FROM semel_record ORDER BY seq")]

    def writes(self) -> None:
        """A write that does not wait for locks: it fails if another connection holds the file."""
        with closing(sqlite3.connect(self.path, timeout=0)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def file(tmp_path: Path, clock: SettableClock) -> Path:
    path = tmp_path / "app.db"
    migrated_file(path, "CREATE TABLE effect (n INTEGER UNIQUE)")
    return path


@pytest.fixture
def outside(file: Path) -> Outside:
    return Outside(file)


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> Mode:
    given: Mode = request.param
    return given


@pytest.fixture
def make_shell(mode: Mode, file: Path, clock: SettableClock) -> Iterator[MakeShell]:
    """Engines on the file, each as in a process of its own."""
    made: list[Shell] = []

    def make() -> Shell:
        shell = Shell(mode, sqlite(file, clock, busy_seconds=0.2))
        made.append(shell)
        shell.open()
        return shell

    yield make
    for shell in made:
        shell.close()


@pytest.fixture
def shell(make_shell: MakeShell) -> Shell:
    return make_shell()
