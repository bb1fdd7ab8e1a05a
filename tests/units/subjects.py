"""Every client library that ATOMIC units go through, as the suite of units wants it."""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from semel import Engine
from semel.stores.backend import Backend
from semel.stores.mariadb.url import mariadb_backend
from semel.stores.postgres.url import postgres_backend
from semel.testing.units import UnitSubject
from tests.engine.drivers import sqlite
from tests.servers.files import migrated_file
from tests.servers.mariadb import connect, make_table, mariadb
from tests.servers.postgres import postgres, schema
from tests.servers.schemas import migrated_schema
from verification.subjects.mariadb import mariadb_subject


class _Subject(UnitSubject):
    """A subject in a folder that is new and empty."""

    @abstractmethod
    def __init__(self, folder: Path) -> None: ...


def count_lent(backend: Backend, *, asynchronous: bool) -> int:
    """How many connections a server's pool of units has lent; on the running loop where there is one."""
    begin: Any = backend.unit_async if asynchronous else backend.unit
    lifo = begin.__self__.lifo
    return int(lifo.count - len(lifo.idle))


class Sqlite(_Subject):
    tells_running = False
    refused = ("ATTACH 'other.db' AS other", "COMMIT", "BEGIN", "END", "VACUUM", "DETACH main")

    def __init__(self, folder: Path) -> None:
        self._path = folder / "units.db"
        migrated_file(self._path, "CREATE TABLE effect (n INTEGER PRIMARY KEY)")

    def open(self) -> Backend:
        return sqlite(self._path, busy_seconds=0.2)

    async def execute(self, connection: Any, statement: str) -> None:
        connection.execute(statement)

    async def end_early(self, connection: Any, word: str) -> None:
        connection.set_authorizer(None)  # who means it can
        connection.execute(word)

    def look(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path)) as connection, connection:
            return connection.execute(statement).fetchall()

    def is_free(self) -> bool:
        with closing(sqlite3.connect(self._path, timeout=0)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            return connection.in_transaction


class AsyncSqlite(Sqlite):
    asynchronous = True


class Psycopg(_Subject):
    deferred = (
        "CREATE TABLE child (n integer REFERENCES effect (n) DEFERRABLE INITIALLY DEFERRED)",
        "INSERT INTO child VALUES (99)",
    )
    by_asyncpg = False

    def __init__(self, folder: Path) -> None:
        migrated_schema(postgres(), schema(), "CREATE TABLE effect (n integer PRIMARY KEY)")
        self._outside = psycopg.connect(postgres(), autocommit=True, options=f"-c search_path={schema()}")

    def open(self) -> Backend:
        return postgres_backend(postgres(), asyncpg=self.by_asyncpg, schema=schema())

    async def execute(self, connection: Any, statement: str) -> None:
        connection.execute(statement)

    def look(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = self._outside.execute(statement)
        return cursor.fetchall() if cursor.description is not None else []

    def is_free(self) -> bool:
        held = "SELECT FROM pg_locks WHERE relation = 'semel_record'::regclass AND pid <> pg_backend_pid()"
        return self.look(held) == []

    def close(self) -> None:
        self._outside.close()


class AsyncPsycopg(Psycopg):
    asynchronous = True

    async def execute(self, connection: Any, statement: str) -> None:
        await connection.execute(statement)


class Asyncpg(AsyncPsycopg):
    by_asyncpg = True
    has_commit = False


class Pymysql(_Subject):
    outlasting = ("CREATE OR REPLACE TABLE plain (n integer) ENGINE = MyISAM", "INSERT INTO plain VALUES (1)")

    def __init__(self, folder: Path) -> None:
        self._server = mariadb()
        with closing(Engine(mariadb_subject(self._server, None).backend)) as engine:
            engine.migrate()
        self._outside = connect(self._server.port, database=self._server.database)
        make_table(self._server, "effect", "n integer PRIMARY KEY")

    def open(self) -> Backend:
        return mariadb_backend(self._server)

    async def execute(self, connection: Any, statement: str) -> None:
        connection.cursor().execute(statement)

    def look(self, statement: str) -> list[tuple[Any, ...]]:
        with self._outside.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def is_free(self) -> bool:
        try:
            self.look("SELECT id FROM semel_record FOR UPDATE NOWAIT")
        except pymysql.err.OperationalError:
            return False
        return True

    def close(self) -> None:
        self._outside.close()


class Asyncmy(Pymysql):
    asynchronous = True

    async def execute(self, connection: Any, statement: str) -> None:
        await connection.cursor().execute(statement)


SUBJECTS: tuple[type[_Subject], ...] = (Sqlite, AsyncSqlite, Psycopg, AsyncPsycopg, Asyncpg, Pymysql, Asyncmy)
