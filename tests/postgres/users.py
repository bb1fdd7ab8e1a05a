"""People's own transactions, one class for each way to have one, told alike: always with ``await``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import django
import psycopg
from django.conf import settings
from django.db import connections, transaction
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from semel import AsyncEngine, Command, Engine
from semel.stores.postgres.url import postgres_backend
from semel.testing.joins import JoinUser
from tests.servers.postgres import schema

ALIAS = "semel-postgres"


def search_path() -> str:
    return f"-c search_path={schema()},public"


class User(JoinUser):
    """A user with an own transaction on PostgreSQL, and an engine if the test asks for one."""

    asynchronous = False
    engine_by_asyncpg = False

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo

    @cached_property
    def engine(self) -> Any:
        made: Any = AsyncEngine if self.asynchronous else Engine
        return made(
            postgres_backend(self.conninfo, schema=schema(), patience_seconds=2, asyncpg=self.engine_by_asyncpg)
        )

    async def end(self) -> None:
        await self.close()
        if "engine" in vars(self):
            closed = self.engine.close()
            if self.asynchronous:
                await closed

    @asynccontextmanager
    async def join(self, what: Command) -> AsyncIterator[Any]:
        if self.asynchronous:
            async with self.engine.atomic(self.target, what) as once:
                yield once
        else:
            with self.engine.atomic(self.target, what) as once:
                yield once

    async def commit(self) -> None:
        self.target.commit()

    async def rollback(self) -> None:
        self.target.rollback()

    @asynccontextmanager
    async def _of_sync(self, block: Any) -> AsyncIterator[None]:
        with block:
            yield


class Psycopg(User):
    async def open(self) -> None:
        self.target = psycopg.connect(self.conninfo, options=search_path())

    async def close(self) -> None:
        self.target.close()

    async def execute(self, sql: str) -> None:
        self.target.execute(sql)

    def savepoint(self) -> Any:
        self.target.execute("SELECT 1")  # the first transaction() block would otherwise be the transaction itself
        return self._of_sync(self.target.transaction())


class PsycopgBlock(Psycopg):
    """``with connection.transaction()`` on an autocommit connection."""

    autobegins = False
    block: Any = None

    async def open(self) -> None:
        self.target = psycopg.connect(self.conninfo, options=search_path(), autocommit=True)

    async def begin(self) -> None:
        self.block = self.target.transaction()
        self.block.__enter__()

    async def commit(self) -> None:
        block, self.block = self.block, None
        block.__exit__(None, None, None)

    async def rollback(self) -> None:
        block, self.block = self.block, None
        error = psycopg.Rollback()
        block.__exit__(psycopg.Rollback, error, None)

    def savepoint(self) -> Any:
        return self._of_sync(self.target.transaction())

    async def close(self) -> None:
        if self.block is not None:
            await self.rollback()
        await super().close()


class AsyncPsycopg(User):
    asynchronous = True

    async def open(self) -> None:
        self.target = await psycopg.AsyncConnection.connect(self.conninfo, options=search_path())

    async def close(self) -> None:
        await self.target.close()

    async def execute(self, sql: str) -> None:
        await self.target.execute(sql)

    async def commit(self) -> None:
        await self.target.commit()

    async def rollback(self) -> None:
        await self.target.rollback()

    @asynccontextmanager
    async def _savepoint(self) -> AsyncIterator[None]:
        await self.target.execute("SELECT 1")
        async with self.target.transaction():
            yield

    def savepoint(self) -> Any:
        return self._savepoint()


class Asyncpg(User):
    asynchronous = True
    engine_by_asyncpg = True
    autobegins = False
    block: Any = None

    async def open(self) -> None:
        self.target = await asyncpg.connect(self.conninfo, server_settings={"search_path": f"{schema()},public"})

    async def begin(self) -> None:
        self.block = self.target.transaction()
        await self.block.start()

    async def close(self) -> None:
        if not self.target.is_closed():
            await self.target.close()

    async def execute(self, sql: str) -> None:
        await self.target.execute(sql)

    async def commit(self) -> None:
        await self.block.commit()

    async def rollback(self) -> None:
        await self.block.rollback()

    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        block: AbstractAsyncContextManager[Any] = self.target.transaction()
        return block


class AsyncpgPool(Asyncpg):
    """A connection that asyncpg's pool has lent."""

    pool: Any

    async def open(self) -> None:
        self.pool = await asyncpg.create_pool(
            self.conninfo, min_size=1, max_size=2, server_settings={"search_path": f"{schema()},public"}
        )
        self.target = await self.pool.acquire()

    async def close(self) -> None:
        await self.pool.release(self.target)
        await self.pool.close()


class AlchemySession(User):
    users: Any

    def _target(self) -> Any:
        return Session(self.users)

    async def open(self) -> None:
        url = self.conninfo.replace("postgresql:", "postgresql+psycopg:")
        self.users = create_engine(url, connect_args={"options": search_path()})
        self.target = self._target()

    async def close(self) -> None:
        self.target.close()
        self.users.dispose()

    async def execute(self, sql: str) -> None:
        self.target.execute(text(sql))

    def savepoint(self) -> Any:
        return self._of_sync(self.target.begin_nested())


class AlchemyConnection(AlchemySession):
    def _target(self) -> Any:
        return self.users.connect()


class AsyncAlchemySession(User):
    asynchronous = True
    dialect = "psycopg"
    users: Any

    async def _target(self) -> Any:
        return AsyncSession(self.users)

    async def open(self) -> None:
        url = self.conninfo.replace("postgresql:", f"postgresql+{self.dialect}:")
        arguments: dict[str, Any] = {"options": search_path()}
        if self.dialect == "asyncpg":
            arguments = {"server_settings": {"search_path": f"{schema()},public"}}
        self.users = create_async_engine(url, connect_args=arguments)
        self.target = await self._target()

    async def close(self) -> None:
        await self.target.close()
        await self.users.dispose()

    async def execute(self, sql: str) -> None:
        await self.target.execute(text(sql))

    async def commit(self) -> None:
        await self.target.commit()

    async def rollback(self) -> None:
        await self.target.rollback()

    def savepoint(self) -> Any:
        return self.target.begin_nested()


class AsyncAlchemyConnection(AsyncAlchemySession):
    async def _target(self) -> Any:
        return await self.users.connect()


class AsyncpgAlchemySession(AsyncAlchemySession):
    engine_by_asyncpg = True
    dialect = "asyncpg"


class AsyncpgAlchemyConnection(AsyncAlchemyConnection):
    dialect = "asyncpg"


class Django(User):
    """``with transaction.atomic(using=…)``."""

    autobegins = False
    block: Any = None

    async def open(self) -> None:
        self.target = django_connection(self.conninfo)

    async def begin(self) -> None:
        self.block = transaction.atomic(using=ALIAS)
        self.block.__enter__()

    async def commit(self) -> None:
        block, self.block = self.block, None
        block.__exit__(None, None, None)

    async def rollback(self) -> None:
        transaction.set_rollback(True, using=ALIAS)
        await self.commit()

    async def execute(self, sql: str) -> None:
        with self.target.cursor() as cursor:
            cursor.execute(sql)

    def savepoint(self) -> Any:
        return self._of_sync(transaction.atomic(using=ALIAS))

    async def close(self) -> None:
        if self.block is not None:
            await self.rollback()
        self.target.close()


def django_connection(conninfo: str, alias: str = ALIAS) -> Any:
    """A connection of Django's to this server."""
    if not settings.configured:
        settings.configure()
        django.setup()
    parts = urlsplit(conninfo)
    connections.databases[alias] = connections.configure_settings(
        {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": parts.path.strip("/"),
                "USER": parts.username,
                "HOST": parts.hostname,
                "PORT": parts.port,
                "OPTIONS": {"options": search_path()},
            }
        }
    )["default"]
    if hasattr(connections._connections, alias):
        del connections[alias]
    return connections[alias]


USERS: list[type[User]] = [
    *(Psycopg, PsycopgBlock, AsyncPsycopg, Asyncpg, AsyncpgPool, AlchemySession, AlchemyConnection),
    *(AsyncAlchemySession, AsyncAlchemyConnection, AsyncpgAlchemySession, AsyncpgAlchemyConnection, Django),
]
