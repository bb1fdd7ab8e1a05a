"""Events in transactions of the user's own: committed with them, through every client library. 5 s."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncmy
import asyncpg
import psycopg
import pymysql
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from semel import AsyncEngine, Engine, Policy
from semel.errors import ConfigurationError, JoinRefused, PolicyError
from semel.outbox.run import AsyncOutbox, Outbox
from tests.engine.shells import command
from tests.outbox.conftest import MARIADB, POSTGRES, SQLITE, Place, make_place
from tests.servers import mariadb
from tests.servers.postgres import postgres, schema

ID = "0b1f0f2e-6c59-4d1e-9a34-5f1d7c1c2f10"
INSERT = "INSERT INTO effect VALUES (1)"


def connect(place: Place) -> Any:
    """A connection of the database's usual library, which begins implicitly and does not commit."""
    if place.kind == SQLITE:
        return sqlite3.connect(place.url.removeprefix("sqlite:///"))
    if place.kind == POSTGRES:
        return psycopg.connect(postgres(), options=f"-c search_path={schema()}")
    server = mariadb.mariadb()
    return pymysql.connect(
        host="127.0.0.1", port=server.port, user="root", database=server.database, charset="utf8mb4", autocommit=False
    )


@pytest.mark.parametrize("begun", [False, True])
def test_an_event_is_committed_or_rolled_back_with_the_transaction(begun: bool, engine: Engine, place: Place) -> None:
    outbox = Outbox(engine)
    with closing(connect(place)) as connection:
        if begun:
            connection.cursor().execute(INSERT)
        outbox.emit(connection, "orders.placed", {"n": 1}, id=ID)
        assert place.ids == []
        connection.rollback()
        assert place.ids == []
        if begun:
            connection.cursor().execute(INSERT)
        assert outbox.emit(connection, "orders.placed", {"n": 1}, id=ID.upper()) == ID
        connection.commit()
        assert place.ids == [ID]
        outbox.emit(connection, "orders.placed", {"n": 1}, id=ID)  # a repetition under an id of one's own is none
        connection.commit()
    assert place.ids == [ID]
    assert len(place.rows("SELECT n FROM effect")) == begun
    assert outbox.depth()[:2] == (1, 0)


def test_a_sqlalchemy_session_writes_events(tmp_path: Path) -> None:
    place = make_place(SQLITE, tmp_path)
    alchemy = create_engine(place.url)
    with Engine.connect(place.url) as engine, Session(alchemy) as session:
        outbox = Outbox(engine)
        session.execute(text(INSERT))
        outbox.emit(session, "a", b"1")
        session.rollback()
        assert place.ids == []
        outbox.emit(session, "a", b"1")
        session.execute(text(INSERT))
        session.commit()
    alchemy.dispose()
    assert len(place.ids) == len(place.rows("SELECT n FROM effect")) == 1


def test_async_sessions_and_connections(tmp_path: Path) -> None:
    place = make_place(SQLITE, tmp_path)

    async def story() -> None:
        alchemy = create_async_engine(place.url.replace("sqlite://", "sqlite+aiosqlite://"))
        async with AsyncEngine.connect(place.url) as engine, AsyncSession(alchemy) as session:
            outbox = AsyncOutbox(engine)
            await session.execute(text(INSERT))
            await outbox.emit(session, "a", b"1")
            await session.commit()
            assert (await outbox.depth()).waiting == 1
        await alchemy.dispose()

    asyncio.run(story())
    assert len(place.ids) == len(place.rows("SELECT n FROM effect")) == 1


def test_async_libraries_of_postgresql(tmp_path: Path) -> None:
    place = make_place(POSTGRES, tmp_path)

    async def story() -> None:
        async with AsyncEngine.connect(place.url) as engine:
            outbox = AsyncOutbox(engine)
            async with await psycopg.AsyncConnection.connect(
                postgres(), options=f"-c search_path={schema()}"
            ) as connection:
                await connection.execute(INSERT)
                await outbox.emit(connection, "a", b"1")
            other = await asyncpg.connect(postgres(), server_settings={"search_path": schema()})
            async with other.transaction():
                await outbox.emit(other, "a", b"2")
            await other.close()

    asyncio.run(story())
    assert len(place.ids) == 2
    assert len(place.rows("SELECT n FROM effect")) == 1


@mariadb.MARK
def test_the_async_library_of_mariadb(tmp_path: Path) -> None:
    place = make_place(MARIADB, tmp_path)
    server = mariadb.mariadb()

    async def story() -> None:
        async with AsyncEngine.connect(place.url) as engine:
            connection = await asyncmy.connect(
                host="127.0.0.1", port=server.port, user="root", database=server.database, charset="utf8mb4"
            )
            await AsyncOutbox(engine).emit(connection, "a", b"1")
            await connection.commit()
            await connection.ensure_closed()

    asyncio.run(story())
    assert len(place.ids) == 1


def alone(place: Place) -> Any:
    return sqlite3.connect(place.url.removeprefix("sqlite:///"), isolation_level=None)


def elsewhere(place: Place) -> Any:
    return sqlite3.connect(":memory:")


@pytest.mark.parametrize(("made", "says"), [(alone, "autocommit"), (elsewhere, "another file")])
def test_a_connection_that_would_not_commit_the_event_is_refused(
    made: Callable[[Place], Any], says: str, tmp_path: Path
) -> None:
    place = make_place(SQLITE, tmp_path)
    with (
        Engine.connect(place.url) as engine,
        closing(made(place)) as connection,
        pytest.raises(JoinRefused, match=says),
    ):
        Outbox(engine).emit(connection, "a", b"1")
    assert place.ids == []


def test_a_mistake_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    place = make_place(SQLITE, tmp_path)
    with Engine.connect(place.url) as engine, closing(connect(place)) as connection:
        with pytest.raises(PolicyError, match="UUID"):
            Outbox(engine).emit(connection, "a", b"1", id="7")
        with pytest.raises(JoinRefused, match="cannot be joined"):
            Outbox(engine).emit(object(), "a", b"1")
    with Engine.connect("memory://") as memory, pytest.raises(ConfigurationError, match="SQL database"):
        Outbox(memory)


@pytest.mark.parametrize("commits", [True, False])
def test_a_command_that_joins_the_transaction_emits_in_it(commits: bool, engine: Engine, place: Place) -> None:
    with closing(connect(place)) as connection:
        with engine.atomic(connection, command(policy=Policy(effects="atomic"))) as once:
            assert once.permit is not None
            id = once.permit.emit("orders.placed", {"n": 1})
            connection.cursor().execute(INSERT)
        assert place.ids == []
        if commits:
            connection.commit()
        else:
            connection.rollback()
    assert place.ids == ([id] if commits else [])
    assert len(place.rows("SELECT n FROM effect")) == len(place.rows("SELECT id FROM semel_record")) == commits
