"""A store on disk with records in every state, and the command line as a function."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, Command, Engine, Policy, Scope
from semel.cli.main import main
from semel.engine.permit import Permit
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.url import sqlite_backend

HOUR_US = 3_600_000_000


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


class Shelf:
    """A migrated SQLite store; commands can be made to have happened ``ago_us`` microseconds ago."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        engine = Engine.connect(self.url)
        engine.migrate()
        engine.close()

    def engine(self, ago_us: int = 0) -> Engine:
        driver = SqliteDriver(str(self.path), clock=lambda: time.time_ns() // 1000 - ago_us)
        return Engine(sqlite_backend(driver))

    def command(self, key: str, *, caller: str = "alice", operation: str = "pay", **options: Any) -> Command:
        return Command(Scope("demo", caller, operation), key, bytes(32), "test", Policy.of(**options))

    def succeed(self, key: str, *, ago_us: int = 0, **options: Any) -> str:
        """Run a command that succeeds; return its operation id."""
        with self.engine(ago_us) as engine:
            return engine.run(self.command(key, **options), lambda permit: Answer(201, (), b"paid")).operation_id

    def unknown(self, key: str, *, ago_us: int = 0, **options: Any) -> str:
        """A command whose outcome is unknown."""
        seen: list[str] = []

        def handler(permit: Permit) -> Answer:
            seen.append(permit.operation_id)
            raise ConnectionError("the provider hung up")

        with self.engine(ago_us) as engine, pytest.raises(ConnectionError):
            engine.run(self.command(key, **options), handler)
        return seen[0]

    def abandon(self, key: str, *, ago_us: int = 0, **options: Any) -> str:
        """Claim a command and never settle it; return its operation id."""
        with self.engine(ago_us) as engine:
            permit = engine.claim(self.command(key, **options))
            assert isinstance(permit, Permit)
            return permit.operation_id


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "semel.db")


@pytest.fixture
def semel(capsys: pytest.CaptureFixture[str], shelf: Shelf) -> Callable[..., Ran]:
    """Run one command on the shelf's store."""

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = main([*arguments, "--url", shelf.url])
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return run
