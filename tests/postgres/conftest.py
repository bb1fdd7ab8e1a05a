"""A schema of its own for each test, engines of each kind on it, handlers written once for all of them, and a view
from outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import psycopg
import pytest

from semel import Answer, AsyncEngine, Command, Engine, Permit, Policy
from semel.engine.result import Result
from semel.stores.postgres.url import postgres_backend
from tests.engine.shells import MADE, command
from tests.engine.telling import Member, at_once
from tests.servers.postgres import postgres, schema
from tests.servers.relay import Relay
from tests.servers.schemas import migrated_schema

T = TypeVar("T")
Kind = Literal["psycopg", "psycopg-async", "asyncpg"]
KINDS: tuple[Kind, ...] = ("psycopg", "psycopg-async", "asyncpg")
ATOMIC = Policy(effects="atomic")
WHAT = command(policy=ATOMIC)
INSERT = "INSERT INTO effect VALUES ({})"


class Writes:
    """One connection of any of the three libraries, awaited alike: psycopg's sync one never waits here."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def execute(self, text: str) -> None:
        done = self.connection.execute(text)
        if not isinstance(self.connection, psycopg.Connection):
            await done

    async def fetch(self, text: str) -> list[tuple[Any, ...]]:
        if isinstance(self.connection, psycopg.Connection):
            return self.connection.execute(text).fetchall()
        if isinstance(self.connection, psycopg.AsyncConnection):
            return await (await self.connection.execute(text)).fetchall()
        return [tuple(row) for row in await self.connection.fetch(text)]

    async def insert(self, n: int = 1) -> None:
        await self.execute(INSERT.format(n))

    async def commit(self) -> None:
        """psycopg's habit; asyncpg knows no such method."""
        await self._end("commit")

    async def rollback(self) -> None:
        await self._end("rollback")

    async def close(self) -> None:
        await self._end("close")

    async def _end(self, name: str) -> None:
        ended = getattr(self.connection, name)()
        if isinstance(ended, Awaitable):
            await ended


def writes_of(permit: Permit) -> Writes:
    """Return what a handler writes on; None if its command is not ATOMIC."""
    return Writes(permit.connection if permit.unit is not None else None)


Handler = Callable[[Permit, Writes], Coroutine[Any, Any, Answer]]


class Fellow(Member):
    """One process's engine of one kind, and its loop if it has one."""

    def __init__(self, kind: Kind, conninfo: str, **options: Any) -> None:
        self.kind = kind
        self.runner = asyncio.Runner() if kind != "psycopg" else None
        made: Any = Engine if self.runner is None else AsyncEngine
        own = schema() if options.pop("own_schema", True) else None
        self.backend = postgres_backend(conninfo, asyncpg=kind == "asyncpg", schema=own, **options)
        self.engine: Any = made(self.backend)

    def run(self, what: Command, handler: Handler, *, wait_seconds: float = 0) -> Result:
        return self.tell(self.running(what, handler, wait_seconds=wait_seconds))

    async def running(self, what: Command, handler: Handler, *, wait_seconds: float = 0) -> Result:
        """To be awaited on this fellow's own loop."""
        result: Result
        if self.runner is None:
            result = self.engine.run(
                what, lambda permit: at_once(handler(permit, writes_of(permit))), wait_seconds=wait_seconds
            )
            return result

        async def handle(permit: Permit) -> Answer:
            return await handler(permit, writes_of(permit))

        result = await self.engine.run(what, handle, wait_seconds=wait_seconds)
        return result

    @property
    def units(self) -> tuple[int, int]:
        """Connections of the units: how many there are, and how many of them are idle."""
        begin: Any = self.backend.unit if self.runner is None else self.backend.unit_async

        async def count() -> tuple[int, int]:
            lifo = begin.__self__.lifo
            return lifo.count, len(lifo.idle)

        return self.tell(count())


class Outside:
    """Another connection to the database: what it sees, and what it changes."""

    def __init__(self, conninfo: str) -> None:
        self.connection = psycopg.connect(conninfo, autocommit=True, options=f"-c search_path={schema()}")

    def fetch(self, text: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(text).fetchall()

    def rows(self, table: str = "effect") -> list[int]:
        return [n for (n,) in self.fetch(f"SELECT n FROM {table} ORDER BY n")]

    @property
    def states(self) -> list[int]:
        return [state for (state,) in self.fetch("SELECT state FROM semel_record ORDER BY seq")]

    @property
    def open_transactions(self) -> int:
        """Backends in a transaction that touches this schema's tables, other than this one."""
        [(count,)] = self.fetch(
            "SELECT count(DISTINCT pid) FROM pg_locks WHERE relation = 'semel_record'::regclass AND pid <> "
            "pg_backend_pid()"
        )
        return int(count)


@pytest.fixture
def conninfo() -> str:
    """This run's server, with a schema in it that is migrated and empty, and has the application's own table."""
    server = postgres()
    migrated_schema(server, schema(), "CREATE TABLE effect (n integer PRIMARY KEY)")
    return server


@pytest.fixture
def outside(conninfo: str) -> Iterator[Outside]:
    made = Outside(conninfo)
    yield made
    made.connection.close()


@pytest.fixture
def reading_role(outside: Outside) -> Iterator[str]:
    """A role whose transactions are read-only."""
    role = f"semel_reader_{schema()}"
    outside.connection.execute(f"DROP ROLE IF EXISTS {role}")
    outside.connection.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    outside.connection.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    yield role
    outside.connection.execute(f"DROP ROLE {role}")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    given: Kind = request.param
    return given


@pytest.fixture
def make_fellow(kind: Kind, conninfo: str) -> Iterator[Callable[..., Fellow]]:
    """Engines on the schema, each as in a process of its own."""
    made: list[Fellow] = []

    def make(**options: Any) -> Fellow:
        fellow = Fellow(kind, options.pop("conninfo", conninfo), **options)
        made.append(fellow)
        return fellow

    yield make
    for fellow in made:
        fellow.close()


@pytest.fixture
def fellow(make_fellow: Callable[..., Fellow]) -> Fellow:
    return make_fellow()


async def never(permit: Permit, db: Writes) -> Answer:
    raise AssertionError("this must not run")


async def insert_and_answer(permit: Permit, db: Writes) -> Answer:
    await db.insert()
    return MADE


@pytest.fixture
def relay(conninfo: str) -> Iterator[Relay]:
    """A relay before the server."""
    port = urlsplit(conninfo).port
    assert port is not None
    made = Relay(port)
    yield made
    made.close()
