"""SQLAlchemy: joining the user's Session, Connection and their async forms."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from semel import AsyncEngine, Engine
from semel.core.model import KeyReused, State
from semel.errors import (
    JoinRefused,
    KeyReusedError,
    StoreUnavailable,
    SupersededError,
)
from semel.testing.clock import SettableClock
from tests.atomic.conftest import Outside
from tests.atomic.mapped import WHAT, Effect
from tests.engine.drivers import sqlite
from tests.engine.shells import MADE

# --- joining ---


class Sync:
    """Sync calls behind ``await``, so that one story serves both engines."""

    def __init__(self, target: Any) -> None:
        self.target = target

    async def execute(self, sql: str) -> None:
        self.target.execute(text(sql))

    async def commit(self) -> None:
        self.target.commit()

    async def rollback(self) -> None:
        self.target.rollback()

    def begin_nested(self) -> Any:
        return self.target.begin_nested()


class Async(Sync):
    async def execute(self, sql: str) -> None:
        await self.target.execute(text(sql))

    async def commit(self) -> None:
        await self.target.commit()

    async def rollback(self) -> None:
        await self.target.rollback()


Story = Callable[[Any, Sync], Any]
Tell = Callable[..., None]
KINDS = ["session", "connection", "async-session", "async-connection", "session-on-async-engine"]


@pytest.fixture(params=KINDS)
def tell(request: pytest.FixtureRequest, file: Path, clock: SettableClock) -> Tell:
    """Tells a story with ``join(command)``, an async context manager, and the user's transaction."""
    kind: str = request.param

    def telling(story: Story, prepare: Any = None, **options: Any) -> None:
        asyncio.run(_run_story(kind, file, clock, story, prepare, options))

    return telling


async def _run_story(kind: str, file: Path, clock: SettableClock, story: Story, prepare: Any, options: Any) -> None:
    backend = sqlite(file, clock, busy_seconds=0.2)
    if kind.startswith("async"):
        users = create_async_engine(f"sqlite+aiosqlite:///{file}", **options)
        if prepare is not None:
            prepare(users.sync_engine)
        engine = AsyncEngine(backend)
        async with AsyncSession(users) if kind == "async-session" else users.connect() as target:
            await story(lambda what: engine.atomic(target, what), Async(target))
            await target.rollback()
        await users.dispose()
        await engine.close()
        return
    plain = create_engine(f"sqlite:///{file}", **options)
    if prepare is not None:
        prepare(plain)
    shell: Any = AsyncEngine(backend) if kind == "session-on-async-engine" else Engine(backend)
    with plain.connect() if kind == "connection" else Session(plain) as sync_target:
        joins = _Awaited if isinstance(shell, Engine) else (lambda block: block)
        await story(lambda what: joins(shell.atomic(sync_target, what)), Sync(sync_target))
        sync_target.rollback()
    plain.dispose()
    if isinstance(shell, Engine):
        shell.close()
    else:
        await shell.close()


class _Awaited:
    """``with`` behind ``async with``."""

    def __init__(self, block: Any) -> None:
        self.block = block

    async def __aenter__(self) -> Any:
        return self.block.__enter__()

    async def __aexit__(self, *error: Any) -> Any:
        return self.block.__exit__(*error)


async def joins(join: Any, user: Sync, n: int = 1, what: Any = WHAT) -> Any:
    async with join(what) as once:
        if not once.replayed:
            await user.execute(f"INSERT INTO effect VALUES ({n})")
            once.answer = MADE
    return once


def _autocommit(engine: Any) -> None:
    """What some set by hand, so that SQLAlchemy's savepoints work on older drivers."""

    @event.listens_for(engine, "connect")
    def connect(dbapi_connection: Any, _: Any) -> None:
        dbapi_connection.isolation_level = None


REFUSED: list[tuple[str, dict[str, Any], Any, str]] = [
    ("", {"isolation_level": "AUTOCOMMIT"}, None, "autocommit"),
    ("", {}, _autocommit, "autocommit"),
    ("INSERT INTO effect VALUES (5)", {}, None, "already begun"),
    ("SAVEPOINT mine", {}, None, "already begun"),
]


@pytest.mark.parametrize(("statement", "options", "prepare", "words"), REFUSED)
def test_a_transaction_that_cannot_hold_the_record_is_refused(
    tell: Tell, outside: Outside, statement: str, options: dict[str, Any], prepare: Any, words: str
) -> None:
    async def story(join: Any, user: Sync) -> None:
        if statement:
            await user.execute(statement)
        with pytest.raises(JoinRefused, match=words):
            await joins(join, user)
        await user.rollback()
        outside.writes()

    tell(story, prepare, **options)
    assert outside.states == []


def test_another_database_is_refused(tell: Tell, outside: Outside) -> None:
    def pretends(engine: Any) -> None:
        engine.dialect.name = "postgresql"

    async def story(join: Any, user: Sync) -> None:
        with pytest.raises(JoinRefused, match="two databases"):
            await joins(join, user)

    tell(story, pretends)


def test_the_users_text_factory_stays(tell: Tell, outside: Outside) -> None:
    def bytes_everywhere(engine: Any) -> None:
        @event.listens_for(engine, "connect")
        def connect(dbapi_connection: Any, _: Any) -> None:
            getattr(dbapi_connection, "driver_connection", dbapi_connection).text_factory = bytes

    async def story(join: Any, user: Sync) -> None:
        for replayed in (False, True):
            once = await joins(join, user)
            assert once.replayed is replayed
            await user.commit()

    tell(story, bytes_everywhere)
    assert outside.rows() == [1]


def test_a_busy_file_is_refused_in_time_and_leaves_no_lock(tell: Tell, outside: Outside, file: Path) -> None:
    async def story(join: Any, user: Sync) -> None:
        with closing(sqlite3.connect(file)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable):
                await joins(join, user)
            other.rollback()
        await user.rollback()
        outside.writes()
        await joins(join, user)
        await user.commit()

    tell(story)
    assert outside.rows() == [1]


def test_a_verdict_between_the_look_and_the_claim_leaves_no_lock(
    tell: Tell, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semel.stores.sqlite.store import SqliteStore

    def claim_in_unit(self: Any, claim: Any) -> Any:
        yield from ()
        return KeyReused()

    async def story(join: Any, user: Sync) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(SqliteStore, "claim_in_unit", claim_in_unit)
            with pytest.raises(KeyReusedError):
                await joins(join, user)
        outside.writes()
        await joins(join, user)  # the session goes on, though its transaction was ended under it
        await user.commit()

    tell(story)
    assert outside.rows() == [1]


def breaks(engine: Engine, session: Session) -> None:
    with engine.atomic(session, WHAT) as once:
        session.add(Effect(n=1))
        with pytest.raises(IntegrityError):
            session.flush()
        once.answer = MADE  # and never mind the session, which is broken now


def test_an_error_in_flush_in_the_block_leaves_nothing(file: Path, clock: SettableClock, outside: Outside) -> None:
    users = create_engine(f"sqlite:///{file}")
    with Engine(sqlite(file, clock)) as engine, Session(users) as session:
        session.add(Effect(n=1))
        session.commit()
        session.expunge_all()
        with pytest.raises(SupersededError, match="do not commit"):
            breaks(engine, session)
        session.rollback()
        assert (outside.rows(), outside.states) == ([1], [])
        with engine.atomic(session, WHAT) as once:
            session.add(Effect(n=2))
            once.answer = MADE
        session.commit()
    users.dispose()
    assert (outside.rows(), outside.states) == ([1, 2], [State.SUCCEEDED])


def test_rows_flushed_by_the_commit_are_part_of_it(file: Path, clock: SettableClock, outside: Outside) -> None:
    """An error there fails the whole commit: nothing remains, and the key is free."""
    users = create_engine(f"sqlite:///{file}")
    with Engine(sqlite(file, clock)) as engine, Session(users) as session:
        session.add(Effect(n=1))
        session.commit()
        session.expunge_all()
        with engine.atomic(session, WHAT) as once:
            session.add(Effect(n=1))
            once.answer = MADE
        with pytest.raises(IntegrityError):
            session.commit()
        session.rollback()
        assert (outside.rows(), outside.states) == ([1], [])
        with engine.atomic(session, WHAT) as once:
            assert not once.replayed
            session.add(Effect(n=2))
        session.commit()
    users.dispose()
    assert (outside.rows(), outside.states) == ([1, 2], [State.SUCCEEDED])


def test_an_async_join_that_waits_for_the_file_blocks_no_loop(
    file: Path, clock: SettableClock, outside: Outside
) -> None:
    async def main() -> None:
        engine = AsyncEngine(sqlite(file, clock))
        users = create_async_engine(f"sqlite+aiosqlite:///{file}")
        with closing(sqlite3.connect(file)) as holder:
            holder.execute("BEGIN IMMEDIATE")

            async def join() -> None:
                async with AsyncSession(users) as session:
                    async with engine.atomic(session, WHAT) as once:
                        session.add(Effect(n=1))
                        await session.flush()
                        once.answer = MADE
                    await session.commit()

            joining = asyncio.create_task(join())
            turns = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.05, turns.set_result, None)
            before = asyncio.get_running_loop().time()
            await turns
            assert asyncio.get_running_loop().time() - before < 2  # a blocked loop would be late
            assert not joining.done()
            holder.rollback()
            await joining
        await users.dispose()
        await engine.close()

    asyncio.run(main())
    assert outside.rows() == [1]
