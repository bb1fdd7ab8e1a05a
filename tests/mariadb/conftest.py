"""A database of its own for each test, engines of both kinds on it, handlers written once for both, and a view from
outside.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal, TypeVar

import pymysql
import pytest

from semel import Answer, AsyncEngine, Command, Engine, Permit, Policy
from semel.engine.result import Result
from semel.stores.mariadb.protocol import MariadbServer
from semel.stores.mariadb.url import mariadb_backend
from tests.engine.shells import MADE, command
from tests.engine.telling import Member, at_once
from tests.servers.mariadb import connect, make_table, mariadb
from tests.servers.relay import MARIADB, Relay
from verification.subjects.mariadb import mariadb_subject

T = TypeVar("T")
Kind = Literal["pymysql", "asyncmy"]
ATOMIC = Policy(effects="atomic")
WHAT = command(policy=ATOMIC)
PLAIN = command()
INSERT = "INSERT INTO effect VALUES ({})"


class Writes:
    """A connection of either library, awaited alike: PyMySQL never waits here."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._waits = not isinstance(connection, pymysql.connections.Connection)

    async def execute(self, text: str) -> list[tuple[Any, ...]]:
        cursor = self.connection.cursor()
        done = cursor.execute(text)
        if not self._waits:
            return list(cursor.fetchall())
        await done
        return list(await cursor.fetchall())

    async def insert(self, n: int = 1) -> None:
        await self.execute(INSERT.format(n))

    async def say(self, name: str, *arguments: Any) -> None:
        """A method of the connection's own: begin, commit, rollback, autocommit."""
        done = getattr(self.connection, name)(*arguments)
        if self._waits:
            await done


def writes_of(permit: Permit) -> Writes:
    """Return what a handler writes on; None if its command is not ATOMIC."""
    return Writes(permit.connection if permit.unit is not None else None)


Handler = Callable[[Permit, Writes], Coroutine[Any, Any, Answer]]


class Fellow(Member):
    """One process's engine of one kind, and its loop if it has one."""

    def __init__(self, kind: Kind, server: MariadbServer) -> None:
        self.kind = kind
        self.runner = asyncio.Runner() if kind == "asyncmy" else None
        made: Any = Engine if self.runner is None else AsyncEngine
        self.backend = mariadb_backend(server)
        self.engine: Any = made(self.backend)

    def run(self, what: Command, handler: Handler, *, wait_seconds: float = 0) -> Result:
        result: Result
        if self.runner is None:
            result = self.engine.run(
                what, lambda permit: at_once(handler(permit, writes_of(permit))), wait_seconds=wait_seconds
            )
            return result

        async def handle(permit: Permit) -> Answer:
            return await handler(permit, writes_of(permit))

        result = self.runner.run(self.engine.run(what, handle, wait_seconds=wait_seconds))
        return result


class Outside:
    """Another connection to the database: what it sees, and what it changes."""

    def __init__(self, server: MariadbServer) -> None:
        self.connection = connect(server.port, database=server.database)

    def fetch(self, text: str) -> list[tuple[Any, ...]]:
        cursor = self.connection.cursor()
        cursor.execute(text)
        return list(cursor.fetchall())

    def rows(self, table: str = "effect") -> list[int]:
        return [n for (n,) in self.fetch(f"SELECT n FROM {table} ORDER BY n")]

    @property
    def states(self) -> list[int]:
        return [state for (state,) in self.fetch("SELECT state FROM semel_record ORDER BY seq")]

    def others(self) -> list[int]:
        """All other connections to this database."""
        return [
            id
            for (id,) in self.fetch(
                "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
            )
        ]


def prepare(made: MariadbServer) -> MariadbServer:
    """This server, with an empty database: migrated, and with the application's own table."""
    with closing(Engine(mariadb_subject(made, None).backend)) as engine:
        engine.migrate()
    make_table(made, "effect", "n integer PRIMARY KEY")
    return made


@pytest.fixture
def server() -> MariadbServer:
    """This run's server, with an empty database."""
    return prepare(mariadb())


@pytest.fixture
def outside(server: MariadbServer) -> Iterator[Outside]:
    made = Outside(server)
    yield made
    made.connection.close()


@pytest.fixture
def app_server(server: MariadbServer, outside: Outside) -> Iterator[MariadbServer]:
    """A user who is no superuser, whom the server's settings bind."""
    name = f"semel app {os.getpid()}"
    outside.fetch(f"CREATE OR REPLACE USER '{name}'@'127.0.0.1' IDENTIFIED BY 'p@ss/wörd'")
    outside.fetch(f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{server.database}`.* TO '{name}'@'127.0.0.1'")
    yield replace(server, user=name, password="p@ss/wörd")
    outside.fetch(f"DROP USER '{name}'@'127.0.0.1'")


@pytest.fixture
def other(server: MariadbServer, outside: Outside) -> Iterator[str]:
    """Another database with tables of Semel's, as a server of many tenants may have it."""
    name = f"{server.database}_other"
    outside.fetch(f"CREATE OR REPLACE DATABASE `{name}`")
    for (table,) in outside.fetch("SHOW TABLES LIKE 'semel%'"):
        outside.fetch(f"CREATE TABLE `{name}`.`{table}` LIKE `{table}`")
    yield name
    assert outside.fetch(f"SELECT * FROM `{name}`.semel_record") == []
    outside.fetch(f"DROP DATABASE `{name}`")


@pytest.fixture(params=["pymysql", "asyncmy"])
def kind(request: pytest.FixtureRequest) -> Kind:
    given: Kind = request.param
    return given


@pytest.fixture
def make_fellow(kind: Kind, server: MariadbServer) -> Iterator[Callable[..., Fellow]]:
    """Engines on the database, each as in a process of its own."""
    made: list[Fellow] = []

    def make(**changed: Any) -> Fellow:
        fellow = Fellow(kind, replace(server, **changed))
        made.append(fellow)
        return fellow

    yield make
    for fellow in made:
        fellow.close()


@pytest.fixture
def fellow(make_fellow: Callable[..., Fellow]) -> Fellow:
    return make_fellow()


@pytest.fixture
def relay(server: MariadbServer) -> Iterator[Relay]:
    """A relay before the server."""
    made = Relay(server.port, MARIADB)
    yield made
    made.close()


async def never(permit: Permit, db: Writes) -> Answer:
    raise AssertionError("this must not run")


async def insert_and_answer(permit: Permit, db: Writes) -> Answer:
    await db.insert()
    return MADE


async def plain(permit: Permit, db: Writes) -> Answer:
    return MADE
