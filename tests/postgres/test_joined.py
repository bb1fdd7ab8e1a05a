"""What is particular to joins on PostgreSQL; what all databases have in common is in ``semel.testing.joins``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import psycopg
import pytest

from semel import Engine
from semel.errors import JoinRefused
from semel.stores.postgres.url import postgres_backend
from tests.engine.shells import MADE, command
from tests.postgres.conftest import ATOMIC, WHAT, Outside
from tests.postgres.users import Asyncpg, AsyncPsycopg, Psycopg, User
from tests.servers.postgres import schema
from verification.subjects.postgres import empty_schema


@asynccontextmanager
async def someone(made: type[User], conninfo: str, database: str | None = None) -> AsyncIterator[User]:
    user = made(conninfo)
    assert user.engine.backend.unit is not None  # it is made here, on this database, wherever the user goes
    if database is not None:
        user.conninfo = conninfo.removesuffix("postgres") + database
    await user.open()
    try:
        yield user
    finally:
        await user.end()


async def makes(user: User, key: str = "k", n: int = 1) -> None:
    async with user.join(command(key, policy=ATOMIC)) as once:
        assert not once.replayed
        await user.insert(n)
        once.answer = MADE


async def never(user: User, what: Any = WHAT) -> None:
    async with user.join(what):
        raise AssertionError("this must not run")


# --- how it should be ---


# --- what is refused ---


@pytest.mark.parametrize("made", [Psycopg, AsyncPsycopg])
def test_an_autocommit_connection_is_refused(made: type[User], conninfo: str, outside: Outside) -> None:
    async def story() -> None:
        async with someone(made, conninfo) as user:
            done = user.target.set_autocommit(True)
            if user.asynchronous:
                await done
            with pytest.raises(JoinRefused, match="nothing would be committed together; join inside"):
                await never(user)

    asyncio.run(story())
    assert outside.states == []


@pytest.mark.parametrize("made", [Psycopg, Asyncpg])
def test_a_savepoint_that_is_open_is_refused_with_events_too(made: type[User], conninfo: str, outside: Outside) -> None:
    async def leaves_it_open(user: User) -> None:
        async with user.join(WHAT) as once:
            left_open.append(user.savepoint())
            await left_open[0].__aenter__()
            await user.insert()
            once.permit.emit("made", {})
            once.answer = MADE

    async def story() -> None:
        async with someone(made, conninfo) as user:
            await user.begin()
            with pytest.raises(JoinRefused, match="savepoint that was opened inside this block is still open"):
                await leaves_it_open(user)
            with suppress(Exception):  # what a library thinks of the end of its savepoint is its own
                await left_open[0].__aexit__(KeyError, KeyError(), None)
            await user.rollback()

    left_open: list[Any] = []
    asyncio.run(story())
    assert (outside.rows(), outside.states) == ([], [])


@pytest.mark.parametrize("made", [Psycopg, Asyncpg])
def test_another_database_with_its_own_store_is_refused(made: type[User], conninfo: str, outside: Outside) -> None:
    database = f"semel_other_{os.getpid()}"
    with psycopg.connect(conninfo, autocommit=True) as admin:
        if not admin.execute("SELECT FROM pg_database WHERE datname = %s", (database,)).fetchall():
            admin.execute(f"CREATE DATABASE {database}")
    other = conninfo.removesuffix("postgres") + database
    empty_schema(other, schema())
    with closing(Engine(postgres_backend(other, schema=schema()))) as engine:
        engine.migrate()

    async def story() -> None:
        async with someone(made, conninfo, database) as user:
            await user.begin()
            with pytest.raises(JoinRefused, match="another database"):
                await never(user)
            await user.execute("CREATE TABLE mine (n integer)")  # their transaction goes on
            await user.commit()

    asyncio.run(story())
    assert outside.states == []
    with psycopg.connect(other, options=f"-c search_path={schema()}") as connection:
        assert connection.execute("SELECT count(*) FROM mine").fetchone() == (0,)


@pytest.mark.parametrize("thing", [None, "postgresql://", object(), psycopg])
@pytest.mark.parametrize("made", [Psycopg, AsyncPsycopg])
def test_an_invalid_connection_is_refused(made: type[User], conninfo: str, thing: Any) -> None:
    async def story() -> None:
        async with someone(made, conninfo) as user:
            connection, user.target = user.target, thing
            with pytest.raises(JoinRefused, match="cannot be joined here; with Engine pass"):
                await never(user)
            user.target = connection

    asyncio.run(story())


@pytest.mark.parametrize(("made", "wrong"), [(Psycopg, AsyncPsycopg), (Psycopg, Asyncpg), (AsyncPsycopg, Psycopg)])
def test_a_sync_or_async_connection_of_the_other_kind_is_refused(
    made: type[User], wrong: type[User], conninfo: str
) -> None:
    async def story() -> None:
        async with someone(made, conninfo) as user, someone(wrong, conninfo) as other:
            connection, user.target = user.target, other.target
            with pytest.raises(JoinRefused, match="AsyncEngine"):
                await never(user)
            user.target = connection

    asyncio.run(story())


def test_a_closed_connection_is_refused(conninfo: str) -> None:
    async def story() -> None:
        for made in (Psycopg, AsyncPsycopg, Asyncpg):
            async with someone(made, conninfo) as user:
                await user.close()
                with pytest.raises(JoinRefused, match="closed"):
                    await never(user)

    asyncio.run(story())


# --- transactions that end early, or break ---


# --- others meanwhile ---


@pytest.mark.parametrize("made", [Psycopg, AsyncPsycopg])
def test_a_verdict_leaves_no_transaction_open_that_the_join_began(
    made: type[User], conninfo: str, outside: Outside
) -> None:
    async def story() -> None:
        async with someone(made, conninfo) as user:
            await makes(user)
            await user.commit()
            for what in (WHAT, command(request=1, policy=ATOMIC)):
                with suppress(Exception):
                    async with user.join(what) as once:
                        assert once.replayed
                assert user.target.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    asyncio.run(story())
    assert outside.rows() == [1]


@pytest.mark.parametrize("made", [Psycopg, AsyncPsycopg])
def test_the_users_row_factory_and_adapters_stay(made: type[User], conninfo: str) -> None:
    class Shouting(psycopg.types.string.TextLoader):
        def load(self, data: Any) -> Any:
            return str(super().load(data)).upper()

    class Lying(psycopg.adapt.Dumper):
        def dump(self, obj: Any) -> Any:
            return b"0"

    async def story() -> None:
        async with someone(made, conninfo) as user:
            user.target.row_factory = psycopg.rows.dict_row
            user.target.adapters.register_loader("text", Shouting)
            user.target.adapters.register_dumper(int, Lying)
            for replayed in (False, True):
                async with user.join(WHAT) as once:
                    assert once.replayed is replayed
                    once.answer = once.answer if replayed else MADE
                    assert once.answer == MADE
                await user.commit()
            assert user.target.row_factory is psycopg.rows.dict_row

    asyncio.run(story())


@pytest.mark.parametrize("fails", [False, True])
def test_a_join_listens_to_asyncpg_no_longer_than_its_transaction(conninfo: str, outside: Outside, fails: bool) -> None:
    async def story() -> None:
        async with someone(Asyncpg, conninfo) as user:
            await user.begin()
            with suppress(KeyError):
                async with user.join(WHAT) as once:
                    await user.execute("SAVEPOINT mine")
                    await user.insert()
                    await user.execute("RELEASE mine")
                    if fails:
                        raise KeyError
                    once.answer = MADE
            await (user.rollback() if fails else user.commit())
            await user.execute("SELECT 1")
            assert not user.target._query_loggers

    asyncio.run(story())
    assert outside.rows() == ([] if fails else [1])
