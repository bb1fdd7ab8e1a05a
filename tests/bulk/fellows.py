"""Bulks on every database and client library, with one handler each: a coroutine, run to its end by sync libraries."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import psycopg

from semel import AsyncBulk, AsyncEngine, Bulk, Engine
from semel.bulk.declaration import BulkItem, BulkResult
from semel.bulk.rules import ItemOutcome, ItemState, Tally
from semel.inbox.run import Message
from semel.stores.backend import Backend
from semel.stores.urls import connect_backend
from tests.engine.telling import Member, at_once
from tests.servers.files import migrated_file

T = TypeVar("T")
KINDS: Final = ("sqlite", "sqlite-async", "psycopg", "psycopg-async", "asyncpg", "pymysql", "asyncmy")
SYNC: Final = ("sqlite", "psycopg", "pymysql")
Handler = Callable[[BulkItem], Coroutine[Any, Any, object]]
INSERT: Final = "INSERT INTO effect (n) VALUES ({})"


@dataclass(frozen=True)
class Home:
    """A database that is migrated and has the application's own table: how to reach it, and a look from outside."""

    backend: Callable[[str], Backend]
    fetch: Callable[[str], list[tuple[Any, ...]]]

    def effects(self) -> list[int]:
        return sorted(n for (n,) in self.fetch("SELECT n FROM effect"))


class Fellow(Member):
    """One process's engine of one kind, and its loop if it has one."""

    def __init__(self, kind: str, home: Home, **options: Any) -> None:
        self.kind = kind
        self.home = home
        self.runner = None if kind in SYNC else asyncio.Runner()
        made: Any = Engine if self.runner is None else AsyncEngine
        self.engine: Any = made(home.backend(kind))
        form: Any = Bulk if self.runner is None else AsyncBulk
        # A chunk ends by its items alone, however busy the machine is.
        usual = {"operation": "count", "effects": "atomic", "chunk_seconds": 60}
        self.bulk: Any = form(self.engine, **{**usual, **options})

    def run(self, items: Any, handler: Handler, *, key: str = "k", caller: str = "alice", **options: Any) -> BulkResult:
        result: BulkResult
        options = {"key": key, "caller": caller, "wait_seconds": 0, **options}
        if self.runner is None:
            result = self.bulk.run(items, lambda item: at_once(handler(item)), **options)
        else:
            result = self.runner.run(self.bulk.run(items, handler, **options))
        return result

    def outcomes(self, done: BulkResult, **asked: Any) -> list[ItemOutcome]:
        if self.runner is None:
            return list(self.bulk.outcomes(done.operation_id, **asked))

        async def collect() -> list[ItemOutcome]:
            return [outcome async for outcome in self.bulk.outcomes(done.operation_id, **asked)]

        return self.runner.run(collect())

    def progress(self, operation_id: str | None = None, **named: str) -> Tally | None:
        found: Tally | None = self.wait_for(self.bulk.progress(operation_id, **named))
        return found

    def operation_id(self, **named: str) -> str | None:
        found: str | None = self.wait_for(self.bulk.operation_id(**named))
        return found


async def write(item: BulkItem | Message, n: int) -> None:
    """Write one row of the application's own, on any library's connection."""
    await execute(item.connection, INSERT.format(n))


async def execute(made: Any, statement: str) -> None:
    """Execute a statement on any library's connection."""
    if isinstance(made, sqlite3.Connection | psycopg.Connection | psycopg.AsyncConnection) or hasattr(made, "fetchrow"):
        done = made.execute(statement)
    else:
        done = made.cursor().execute(statement)
    if isinstance(done, Awaitable):
        await done


async def breaks_the_commit(connection: Any, n: int) -> None:
    """Make a transaction that has written the row ``n`` one that its database does not commit, and go on."""
    if isinstance(connection, sqlite3.Connection):  # a conflict that ends the transaction, and is swallowed
        with suppress(sqlite3.IntegrityError):
            connection.execute(f"INSERT OR ROLLBACK INTO effect (n) VALUES ({n})")
        return
    if isinstance(connection, psycopg.Connection | psycopg.AsyncConnection) or hasattr(connection, "fetchrow"):
        done = connection.execute("INSERT INTO child VALUES (-1)")  # refused by a deferred constraint
    else:
        done = connection.cursor().execute("ROLLBACK")  # as a deadlock does, whose error is swallowed
    if isinstance(done, Awaitable):
        await done


async def counts(item: BulkItem) -> str:
    """The trivial handler: one row an item."""
    await write(item, item.value["n"])
    return f"r-{item.value['n']}"


def states(outcomes: list[ItemOutcome]) -> list[ItemState]:
    return [outcome.state for outcome in outcomes]


def sqlite_home(path: str) -> Home:
    migrated_file(path, "CREATE TABLE effect (n INTEGER PRIMARY KEY)")
    return sqlite_at(path)


def sqlite_at(path: str) -> Home:
    """A file that is ready."""

    def fetch(text: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path)) as connection:
            rows = connection.execute(text).fetchall()
            connection.commit()
            return rows

    return Home(lambda kind: connect_backend(f"sqlite:///{path}"), fetch)


def postgres_home() -> Home:
    from semel.stores.postgres.url import postgres_backend
    from tests.servers.postgres import postgres, schema
    from tests.servers.schemas import migrated_schema

    server, name = postgres(), schema()
    migrated_schema(
        server,
        name,
        "CREATE TABLE effect (n integer PRIMARY KEY)",
        "CREATE TABLE child (n integer REFERENCES effect (n) DEFERRABLE INITIALLY DEFERRED)",
    )

    def fetch(text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(server, autocommit=True, options=f"-c search_path={name}") as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []

    return Home(lambda kind: postgres_backend(server, asyncpg=kind == "asyncpg", schema=name), fetch)


def mariadb_home() -> Home:
    from semel.stores.mariadb.url import mariadb_backend
    from tests.servers.mariadb import connect, make_table, mariadb
    from verification.subjects.mariadb import mariadb_subject

    server = mariadb()
    with closing(Engine(mariadb_subject(server, None).backend)) as engine:
        engine.migrate()

    def fetch(text: str) -> list[tuple[Any, ...]]:
        with closing(connect(server.port, database=server.database)) as connection, connection.cursor() as cursor:
            cursor.execute(text)
            return list(cursor.fetchall())

    make_table(server, "effect", "n integer PRIMARY KEY")
    return Home(lambda kind: mariadb_backend(server), fetch)
