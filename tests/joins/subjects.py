"""Every way to have a transaction of one's own, as the suite of joined transactions wants it."""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, ClassVar, Literal

import asyncmy
import django
import psycopg
import pymysql
from django.conf import settings
from django.db import connections, transaction
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from semel import Engine
from semel.stores.backend import Backend
from semel.stores.mariadb.protocol import MariadbServer
from semel.stores.mariadb.url import mariadb_backend
from semel.stores.postgres.url import postgres_backend
from semel.testing.joins import JoinSubject, JoinUser
from tests.engine.drivers import sqlite
from tests.postgres import users
from tests.servers.mariadb import connect, make_table, mariadb
from tests.servers.postgres import postgres, schema
from tests.servers.schemas import migrated_schema
from verification.subjects.mariadb import mariadb_subject

ALIAS = "semel-sqlite-joined"


class Subject(JoinSubject):
    """A subject in a folder that is new and empty."""

    @abstractmethod
    def __init__(self, folder: Path) -> None: ...


# --- what SQLAlchemy has in common over all databases ---------------------------------------------


class AlchemyUser(JoinUser):
    """A Session, or another thing of SQLAlchemy's, that waits."""

    users: Any

    async def close(self) -> None:
        self.target.close()
        self.users.dispose()

    async def execute(self, statement: str) -> None:
        self.target.execute(text(statement))

    async def commit(self) -> None:
        self.target.commit()

    async def rollback(self) -> None:
        self.target.rollback()

    @asynccontextmanager
    async def _savepoint(self) -> AsyncIterator[None]:
        with self.target.begin_nested():
            yield


class AsyncAlchemyUser(JoinUser):
    """An AsyncSession, or another thing of SQLAlchemy's, that is awaited."""

    users: Any

    async def close(self) -> None:
        await self.target.close()
        await self.users.dispose()

    async def execute(self, statement: str) -> None:
        await self.target.execute(text(statement))

    async def commit(self) -> None:
        await self.target.commit()

    async def rollback(self) -> None:
        await self.target.rollback()

    def savepoint(self) -> Any:
        return self.target.begin_nested()


# --- SQLite ---------------------------------------------------------------------------------------


class Sqlite3User(JoinUser):
    def __init__(self, path: Path) -> None:
        self._path = path

    async def open(self) -> None:
        self.target = sqlite3.connect(self._path)

    async def close(self) -> None:
        self.target.close()

    async def execute(self, statement: str) -> None:
        self.target.execute(statement)

    async def commit(self) -> None:
        self.target.commit()

    async def rollback(self) -> None:
        self.target.rollback()


class SqliteSessionUser(AlchemyUser):
    def __init__(self, path: Path) -> None:
        self._path = path

    async def open(self) -> None:
        self.users = create_engine(f"sqlite:///{self._path}")
        self.target = Session(self.users)


class SqliteConnectionUser(SqliteSessionUser):
    async def open(self) -> None:
        await super().open()
        self.target = self.users.connect()


class AsyncSqliteSessionUser(AsyncAlchemyUser):
    def __init__(self, path: Path) -> None:
        self._path = path

    async def open(self) -> None:
        self.users = create_async_engine(f"sqlite+aiosqlite:///{self._path}")
        self.target = AsyncSession(self.users)


class AsyncSqliteConnectionUser(AsyncSqliteSessionUser):
    async def open(self) -> None:
        await super().open()
        self.target = await self.users.connect()


class DjangoUser(JoinUser):
    """``with transaction.atomic(using=...)``."""

    autobegins = False
    alias = ALIAS
    block: Any = None

    def __init__(self, path: Path) -> None:
        self._path = path

    async def open(self) -> None:
        if not settings.configured:
            settings.configure()
            django.setup()
        wanted = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(self._path), "OPTIONS": {"timeout": 0.1}}
        connections.databases[ALIAS] = connections.configure_settings({"default": wanted})["default"]
        if hasattr(connections._connections, ALIAS):
            del connections[ALIAS]
        self.target = connections[ALIAS]

    async def begin(self) -> None:
        self.block = transaction.atomic(using=self.alias)
        self.block.__enter__()

    async def commit(self) -> None:
        block, self.block = self.block, None
        block.__exit__(None, None, None)

    async def rollback(self) -> None:
        transaction.set_rollback(True, using=self.alias)
        await self.commit()

    async def execute(self, statement: str) -> None:
        with self.target.cursor() as cursor:
            cursor.execute(statement)

    @asynccontextmanager
    async def _savepoint(self) -> AsyncIterator[None]:
        with transaction.atomic(using=self.alias):
            yield

    async def close(self) -> None:
        if self.block is not None:
            await self.rollback()
        self.target.close()


class Sqlite(Subject):
    made: ClassVar[type[Any]] = Sqlite3User
    tells_running = False
    joins_begun = False
    open_savepoint: ClassVar[Literal["refused", "released"]] = "released"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "joins.db"
        self._other = folder / "other.db"
        for path in (self._path, self._other):
            with closing(Engine(sqlite(path))) as engine:
                engine.migrate()
        self.look("CREATE TABLE effect (n INTEGER PRIMARY KEY)")

    def open(self) -> Backend:
        return sqlite(self._path, busy_seconds=0.2)

    def user(self) -> JoinUser:
        user: JoinUser = self.made(self._path)
        return user

    def elsewhere(self) -> JoinUser:
        user: JoinUser = self.made(self._other)
        return user

    def look(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path)) as connection, connection:
            return connection.execute(statement).fetchall()

    def is_free(self) -> bool:
        with closing(sqlite3.connect(self._path, timeout=0)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            return connection.in_transaction


class SqliteOnLoop(Sqlite):
    """A plain connection, joined on an AsyncEngine."""

    asynchronous = True


class SqliteSession(Sqlite):
    made: ClassVar[type[Any]] = SqliteSessionUser
    open_savepoint = "refused"


class SqliteSessionOnLoop(SqliteSession):
    asynchronous = True


class SqliteConnection(SqliteSession):
    made = SqliteConnectionUser


class AsyncSqliteSession(SqliteSession):
    asynchronous = True
    made = AsyncSqliteSessionUser


class AsyncSqliteConnection(AsyncSqliteSession):
    made = AsyncSqliteConnectionUser


class SqliteDjango(Sqlite):
    made = DjangoUser
    joins_begun = True  # its block has begun
    open_savepoint = "refused"
    needs_block = True
    users_max = 1  # Django has one connection for each thread


# --- PostgreSQL -----------------------------------------------------------------------------------


class Postgres(Subject):
    made: ClassVar[type[users.User]]
    errors_doom = True
    read_only = "SET TRANSACTION READ ONLY"

    def __init__(self, folder: Path) -> None:
        migrated_schema(postgres(), schema(), "CREATE TABLE effect (n integer PRIMARY KEY)")
        self._outside = psycopg.connect(postgres(), autocommit=True, options=f"-c search_path={schema()}")

    def open(self) -> Backend:
        by_asyncpg = self.made.engine_by_asyncpg
        return postgres_backend(postgres(), schema=schema(), patience_seconds=2, asyncpg=by_asyncpg)

    def user(self) -> JoinUser:
        return self.made(postgres())

    def elsewhere(self) -> JoinUser:
        return self.made(postgres().removesuffix("postgres") + "template1")

    def look(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = self._outside.execute(statement)
        return cursor.fetchall() if cursor.description is not None else []

    def is_free(self) -> bool:
        held = "SELECT FROM pg_locks WHERE relation = 'semel_record'::regclass AND pid <> pg_backend_pid()"
        return self.look(held) == []

    def close(self) -> None:
        self._outside.close()


def _on_postgres(made: type[users.User]) -> type[Subject]:
    declared = {
        "made": made,
        "asynchronous": made.asynchronous,
        "needs_block": not made.autobegins,
        "users_max": 1 if made is users.Django else 3,
        "__doc__": made.__doc__,
    }
    return type(f"Postgres{made.__name__}", (Postgres,), declared)


# --- MariaDB --------------------------------------------------------------------------------------


class PymysqlUser(JoinUser):
    def __init__(self, server: MariadbServer, database: str) -> None:
        self.given = {"host": server.host, "port": server.port, "user": server.user, "charset": "utf8mb4"}
        self.given["database"] = database

    async def open(self) -> None:
        self.target = pymysql.connect(**self.given)

    async def close(self) -> None:
        self.target.close()

    async def execute(self, statement: str) -> None:
        self.target.cursor().execute(statement)

    async def commit(self) -> None:
        self.target.commit()

    async def rollback(self) -> None:
        self.target.rollback()

    def address(self, library: str) -> str:
        """The URL of SQLAlchemy's."""
        return "mysql+{}://{user}@{host}:{port}/{database}?charset={charset}".format(library, **self.given)


class AsyncmyUser(PymysqlUser):
    async def open(self) -> None:
        self.target = await asyncmy.connect(**self.given)

    async def close(self) -> None:
        await self.target.ensure_closed()

    async def execute(self, statement: str) -> None:
        await self.target.cursor().execute(statement)

    async def commit(self) -> None:
        await self.target.commit()

    async def rollback(self) -> None:
        await self.target.rollback()


class MariadbSessionUser(AlchemyUser, PymysqlUser):
    async def open(self) -> None:
        self.users = create_engine(self.address("pymysql"), poolclass=NullPool)
        self.target = Session(self.users)


class AsyncMariadbSessionUser(AsyncAlchemyUser, PymysqlUser):
    async def open(self) -> None:
        self.users = create_async_engine(self.address("asyncmy"), poolclass=NullPool)
        self.target = AsyncSession(self.users)


class Mariadb(Subject):
    made: ClassVar[type[PymysqlUser]] = PymysqlUser
    sees_savepoints = False
    open_savepoint: ClassVar[Literal["refused", "released"]] = "released"
    read_only = "START TRANSACTION READ ONLY"

    def __init__(self, folder: Path) -> None:
        self._server = mariadb()
        with closing(Engine(mariadb_subject(self._server, None).backend)) as engine:
            engine.migrate()
        self._outside = connect(self._server.port, database=self._server.database)
        make_table(self._server, "effect", "n integer PRIMARY KEY")

    def open(self) -> Backend:
        return mariadb_backend(self._server)

    def user(self) -> JoinUser:
        return self.made(self._server, self._server.database)

    def elsewhere(self) -> JoinUser:
        return self.made(self._server, "mysql")

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


class MariadbAsyncmy(Mariadb):
    asynchronous = True
    made = AsyncmyUser


class MariadbSession(Mariadb):
    made: ClassVar[type[PymysqlUser]] = MariadbSessionUser
    sees_savepoints = True
    open_savepoint = "refused"


class AsyncMariadbSession(MariadbSession):
    asynchronous = True
    made = AsyncMariadbSessionUser


SUBJECTS: tuple[type[Subject], ...] = (
    *(Sqlite, SqliteOnLoop, SqliteSession, SqliteSessionOnLoop, SqliteConnection),
    *(AsyncSqliteSession, AsyncSqliteConnection, SqliteDjango),
    *map(_on_postgres, users.USERS),
    *(Mariadb, MariadbAsyncmy, MariadbSession, AsyncMariadbSession),
)
