"""Every SQL database in threads and on event loops, behind one face: a store, engines on it, and a clock to be set."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from semel import Answer, Command, Permit, Policy
from semel.core.model import Operation, Record
from semel.operations.flow import find_operation
from semel.stores.backend import Backend
from semel.stores.mariadb.url import mariadb_backend
from semel.stores.postgres.url import postgres_backend
from semel.testing.clock import SettableClock
from tests.engine.drivers import sqlite
from tests.engine.shells import MADE, SCOPE, Mode, Shell, command
from tests.servers import mariadb as maria
from tests.servers import postgres as postgresql
from tests.servers.files import migrated_file
from tests.servers.schemas import migrated_schema
from verification.subjects.mariadb import mariadb_subject

_EFFECT: Final = "CREATE TABLE effect (n integer PRIMARY KEY)"
KINDS: Final = ("sqlite", "sqlite-async", "psycopg", "psycopg-async", "asyncpg", "pymysql", "asyncmy")
EXTERNAL: Final = Policy()
ATOMIC: Final = Policy(effects="atomic")


def own_schema() -> str:
    """A schema of these tests alone."""
    return f"{postgresql.schema()}_operations"


@dataclass
class World:
    """One database, migrated, with a table of the application's own."""

    kind: str
    path: Path
    clock: SettableClock = field(default_factory=SettableClock)
    shells: list[Shell] = field(default_factory=list)

    @property
    def mode(self) -> Mode:
        return "async" if self.kind in ("sqlite-async", "psycopg-async", "asyncpg", "asyncmy") else "sync"

    def prepare(self) -> None:
        if self.kind in ("sqlite", "sqlite-async"):
            migrated_file(self.path / "semel.db", _EFFECT)
        elif self.kind in ("pymysql", "asyncmy"):
            mariadb_subject(maria.mariadb(), None)
            with closing(Shell("sync", self.backend())) as shell:
                shell.open()
            maria.make_table(maria.mariadb(), "effect", "n integer PRIMARY KEY")
        else:
            migrated_schema(postgresql.postgres(), own_schema(), _EFFECT)

    def backend(self) -> Backend:
        match self.kind:
            case "sqlite" | "sqlite-async":
                return sqlite(self.path / "semel.db", self.clock)
            case "pymysql" | "asyncmy":
                return mariadb_backend(replace(maria.mariadb(), clock=self.clock))
            case _:
                server, schema = postgresql.postgres(), own_schema()
                return postgres_backend(server, schema=schema, clock=self.clock, asyncpg=self.kind == "asyncpg")

    @property
    def url(self) -> str:
        """The same store for another process, by the real clock."""
        match self.kind:
            case "sqlite" | "sqlite-async":
                return f"sqlite:///{self.path / 'semel.db'}"
            case "pymysql" | "asyncmy":
                return maria.url(maria.mariadb())
            case _:
                scheme = "postgresql+asyncpg" if self.kind == "asyncpg" else "postgresql"
                rest = postgresql.postgres().partition("://")[2]
                return f"{scheme}://{rest}{'&' if '?' in rest else '?'}schema={own_schema()}"

    def shell(self, **options: Any) -> Shell:
        """An engine as in its own process."""
        shell = Shell(self.mode, self.backend(), **options)
        self.shells.append(shell)
        return shell

    @contextmanager
    def outside(self) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
        """Another connection to the database: what it sees, and what it changes."""
        match self.kind:
            case "sqlite" | "sqlite-async":
                opened: Any = sqlite3.connect(self.path / "semel.db", isolation_level=None)
            case "pymysql" | "asyncmy":
                server = maria.mariadb()
                opened = maria.connect(server.port, database=server.database)
            case _:
                options = f"-c search_path={own_schema()}"
                opened = psycopg.connect(postgresql.postgres(), autocommit=True, options=options)
        with closing(opened):

            def execute(text: str) -> list[tuple[Any, ...]]:
                cursor = opened.cursor()
                cursor.execute(text)
                return list(cursor.fetchall()) if cursor.description else []

            yield execute

    def effects(self) -> list[int]:
        with self.outside() as execute:
            return [n for (n,) in execute("SELECT n FROM effect ORDER BY n")]

    def states(self) -> list[tuple[int, bool]]:
        """Of each operation that is kept: its state, and whether it holds its reference."""
        with self.outside() as execute:
            rows = execute("SELECT state, holds IS NOT NULL FROM semel_operation ORDER BY operation_id")
        return [(state, bool(holds)) for state, holds in rows]

    def find(self, shell: Shell, **name: bytes) -> tuple[Record | None, Operation | None]:
        return shell.perform("operation", lambda: find_operation(shell.engine.store, **name))

    def close(self) -> None:
        while self.shells:
            self.shells.pop().close()


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(request.param, tmp_path)
    made.prepare()
    yield made
    made.close()


@pytest.fixture(params=["sqlite-async", "asyncpg", "pymysql"])
def each(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """One of each database, where the way to it makes no difference."""
    made = World(request.param, tmp_path)
    made.prepare()
    yield made
    made.close()


@pytest.fixture(params=["external", "atomic"])
def policy(request: pytest.FixtureRequest) -> Policy:
    return ATOMIC if request.param == "atomic" else EXTERNAL


def paying(key: str, ref: str | None = "inv-1", policy: Policy = EXTERNAL, **changed: Any) -> Command:
    """A command with a business reference."""
    return replace(command(key, policy=policy, **changed), business_ref=ref)


class Cashier:
    """A handler that counts, and writes a row where it may."""

    def __init__(self, answer: Answer = MADE, error: Exception | None = None) -> None:
        self.ran: list[str] = []
        self.answer = answer
        self.error = error

    def __call__(self, permit: Permit) -> Answer:
        self.ran.append(permit.operation_id)
        permit.result("charge", f"ch-{len(self.ran)}")
        if self.error is not None:
            raise self.error
        return self.answer


__all__ = ["ATOMIC", "EXTERNAL", "KINDS", "SCOPE", "Cashier", "World", "each", "paying", "policy", "world"]
