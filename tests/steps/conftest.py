"""Both engines on the three databases, behind one face: stories of steps are written once, and awaited everywhere."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import psycopg
import pytest

from semel import Answer, AsyncEngine, Command, Engine, Permit, Policy
from semel.core.model import Record
from semel.engine.result import Result
from semel.stores.backend import Backend
from semel.stores.mariadb.url import mariadb_backend
from semel.stores.postgres.url import postgres_backend
from semel.testing.clock import SettableClock
from tests.engine.drivers import sqlite
from tests.engine.shells import command
from tests.engine.telling import at_once
from tests.servers.files import migrated_file
from tests.servers.mariadb import connect, make_table, mariadb
from tests.servers.postgres import postgres, schema
from tests.servers.schemas import migrated_schema
from verification.subjects.mariadb import mariadb_subject

T = TypeVar("T")
Kind = Literal["sqlite", "sqlite-async", "psycopg", "psycopg-async", "asyncpg", "pymysql", "asyncmy"]
KINDS: tuple[Kind, ...] = ("sqlite", "sqlite-async", "psycopg", "psycopg-async", "asyncpg", "pymysql", "asyncmy")
STEPS = Policy(steps=True)
_EFFECT = "CREATE TABLE effect (n integer)"
Handler = Callable[["Run"], Coroutine[Any, Any, Answer]]


def step_command(key: str = "k", policy: Policy = STEPS) -> Command:
    """A command whose operation declares steps."""
    return command(key, policy=policy)


class Run:
    """One run of a handler: its permit, whose steps are awaited on either engine."""

    def __init__(self, permit: Permit, *, is_async: bool) -> None:
        self.permit = permit
        self._is_async = is_async

    async def step(self, name: str, call: Callable[[], Any], **options: Any) -> Any:
        made = self.permit.step(name, call, **options)
        return await made if self._is_async else made

    async def local(self, name: str, call: Callable[[Any], Any], **options: Any) -> Any:
        made = self.permit.local_step(name, call, **options)
        return await made if self._is_async else made


class Process:
    """One process's engine of one kind, and its loop if it has one."""

    def __init__(self, kind: Kind, backend: Backend, **options: Any) -> None:
        self.kind = kind
        self.backend = backend
        self.is_async = kind in ("sqlite-async", "psycopg-async", "asyncpg", "asyncmy")
        self.runner = asyncio.Runner() if self.is_async else None
        self.engine: Any = (AsyncEngine if self.is_async else Engine)(backend, **options)

    def tell(self, told: Any) -> Any:
        """Return what an engine's method answers, awaited if it must be."""
        if self.runner is None or not isinstance(told, Awaitable):
            return told

        async def story() -> Any:
            return await told

        return self.runner.run(story())

    def run(self, what: Command, handler: Handler) -> Result:
        """Run a command whose handler is written once for both engines."""
        if not self.is_async:
            result: Result = self.engine.run(what, lambda permit: at_once(handler(Run(permit, is_async=False))))
            return result

        async def handle(permit: Permit) -> Answer:
            return await handler(Run(permit, is_async=True))

        result = self.tell(self.engine.run(what, handle))
        return result

    def perform(self, verb: str, make: Any) -> Any:
        return self.tell(self.engine.perform(verb, make))

    def row(self, what: Command) -> Record:
        id = self.engine.core.attempt(what).id
        [row] = self.perform("read", lambda: self.engine.store.read((id,)))
        assert isinstance(row, Record)
        return row

    def lapse(self) -> list[Record]:
        """Run one round of the reaper."""
        marked: list[Record] = self.perform("lapse", lambda: self.engine.store.lapse(100))
        return marked

    def close(self) -> None:
        self.tell(self.engine.close())
        if self.runner is not None:
            self.runner.close()


class World:
    """A store with nothing in it, its time, and the processes on it."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind = kind
        self.clock = SettableClock()
        self._folder = folder
        self._processes: list[Process] = []
        if kind in ("sqlite", "sqlite-async"):
            migrated_file(folder / "semel.db", _EFFECT)
        elif kind in ("pymysql", "asyncmy"):
            self._mariadb = replace(mariadb(), clock=self.clock)
            with closing(Engine(mariadb_subject(self._mariadb, self.clock).backend)) as engine:
                engine.migrate()
            make_table(self._mariadb, "effect", "n integer")
        else:
            migrated_schema(postgres(), schema(), _EFFECT)

    def _backend(self) -> Backend:
        match self.kind:
            case "sqlite" | "sqlite-async":
                return sqlite(self._folder / "semel.db", self.clock)
            case "pymysql" | "asyncmy":
                return mariadb_backend(self._mariadb)
            case _:
                asyncpg = self.kind == "asyncpg"
                return postgres_backend(postgres(), asyncpg=asyncpg, schema=schema(), clock=self.clock)

    @contextmanager
    def outside(self) -> Iterator[Any]:
        """A connection of another user."""
        match self.kind:
            case "sqlite" | "sqlite-async":
                made: Any = sqlite3.connect(self._folder / "semel.db")
            case "pymysql" | "asyncmy":
                made = connect(self._mariadb.port, database=self._mariadb.database)
            case _:
                made = psycopg.connect(postgres(), options=f"-c search_path={schema()}")
        with closing(made):
            yield made

    @property
    def effects(self) -> int:
        """How many local writes are committed."""
        with self.outside() as outside, closing(outside.cursor()) as cursor:
            cursor.execute("SELECT count(*) FROM effect")
            return int(cursor.fetchone()[0])

    def insert(self, then: Callable[[], None] = lambda: None) -> Callable[[Any], Any]:
        """A local step's call: one row, and what happens after it; with the library that the engine uses."""
        text = "INSERT INTO effect VALUES (1)"

        def in_thread(connection: Any) -> str:
            with closing(connection.cursor()) as cursor:
                cursor.execute(text)
            then()
            return "written"

        async def on_loop(connection: Any) -> str:
            if self.kind == "asyncmy":
                async with connection.cursor() as cursor:
                    await cursor.execute(text)
            else:
                await connection.execute(text)
            then()
            return "written"

        return on_loop if self.kind in ("psycopg-async", "asyncpg", "asyncmy") else in_thread

    def process(self, **options: Any) -> Process:
        made = Process(self.kind, self._backend(), **options)
        self._processes.append(made)
        return made

    def close(self) -> None:
        for process in self._processes:
            process.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    given: Kind = request.param
    return given


@pytest.fixture
def world(kind: Kind, tmp_path: Path) -> Iterator[World]:
    made = World(kind, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "psycopg", "pymysql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """One kind for each database: these tests are about the store, not the engine."""
    made = World(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """One process on SQLite: these tests are about the rules."""
    made = World("sqlite", tmp_path)
    yield made.process()
    made.close()
