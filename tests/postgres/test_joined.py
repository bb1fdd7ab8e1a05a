"""The user's own transaction on PostgreSQL, through each library: one commit, or nothing of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import psycopg
import pytest

from semel import Answer, AsyncEngine, Engine, Permit, Policy
from semel.core.model import State
from semel.errors import (
    EarlyCommit,
    InProgressError,
    JoinRefused,
    KeyReusedError,
    OutcomeUnknownError,
    PolicyError,
    SemelError,
    StoreReadOnly,
    StoreUnavailable,
    SupersededError,
)
from semel.stores.postgres.url import postgres_backend
from semel.testing.postgres import empty_schema
from tests.engine.shells import MADE, command
from tests.postgres.conftest import ATOMIC, WHAT, Outside
from tests.postgres.users import USERS, Asyncpg, AsyncPsycopg, Psycopg, User
from tests.servers.postgres import schema

Tell = Callable[[Callable[[User], Awaitable[None]]], None]
SWALLOWED: tuple[type[Exception], ...] = (Exception,)


@pytest.fixture(params=USERS, ids=lambda made: made.__name__)
def tell(request: pytest.FixtureRequest, conninfo: str) -> Tell:
    """Tells a story of one user."""

    def telling(story: Callable[[User], Awaitable[None]]) -> None:
        asyncio.run(_told(request.param, conninfo, story))

    return telling


async def _told(made: type[User], conninfo: str, story: Callable[[User], Awaitable[None]]) -> None:
    async with someone(made, conninfo) as user:
        await story(user)


@asynccontextmanager
async def someone(made: type[User], conninfo: str, database: str | None = None) -> AsyncIterator[User]:
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # the stories are told on a loop of their own
    user = made(conninfo)
    await user.open(conninfo if database is None else conninfo.removesuffix("postgres") + database)
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


def test_the_users_commit_makes_the_record_and_the_writes_final(tell: Tell, outside: Outside) -> None:
    async def story(user: User) -> None:
        for n in (1, 2):
            await user.begin()
            await makes(user, f"k{n}", n)
            assert (outside.rows(), outside.states) == ([*range(1, n)], [3] * (n - 1))
            await user.commit()
            assert (outside.rows(), outside.states) == ([*range(1, n + 1)], [State.SUCCEEDED] * n)
        await user.begin()
        async with user.join(command("k1", policy=ATOMIC)) as again:
            assert (again.replayed, again.answer) == (True, MADE)
        await user.commit()
        await user.begin()
        with pytest.raises(KeyReusedError):
            await never(user, command("k1", request=1, policy=ATOMIC))
        await user.insert(3)  # their transaction is theirs still
        await user.commit()

    tell(story)
    assert (outside.rows(), outside.open_transactions) == ([1, 2, 3], 0)


@pytest.mark.parametrize("when", ["in the block", "after it", "closed"])
def test_without_the_users_commit_nothing_remains_and_the_key_is_free(tell: Tell, outside: Outside, when: str) -> None:
    async def story(user: User) -> None:
        await user.begin()
        if when == "in the block":
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block's end is what is tested
                async with user.join(WHAT):
                    await user.insert()
                    raise ZeroDivisionError
        else:
            await makes(user)
        if when != "closed":
            await user.rollback()
            assert (outside.rows(), outside.states) == ([], [])
            await user.begin()
            await makes(user)
            await user.commit()

    tell(story)
    assert outside.rows() == ([] if when == "closed" else [1])
    assert outside.states == ([] if when == "closed" else [State.SUCCEEDED])


def test_a_transaction_that_has_read_and_written_is_joined(tell: Tell, outside: Outside) -> None:
    async def story(user: User) -> None:
        await user.begin()
        await user.execute("SELECT count(*) FROM effect")
        await user.insert(7)
        await makes(user)
        await user.insert(8)
        await user.commit()

    tell(story)
    assert (outside.rows(), outside.states) == ([1, 7, 8], [State.SUCCEEDED])


def test_two_commands_in_one_transaction(tell: Tell, outside: Outside) -> None:
    async def story(user: User) -> None:
        await user.begin()
        await makes(user, "one", 1)
        await makes(user, "two", 2)
        async with user.join(command("one", policy=ATOMIC)) as again:
            assert again.replayed
        await user.commit()

    tell(story)
    assert (outside.rows(), outside.states) == ([1, 2], [3, 3])


def test_a_savepoint_of_the_users_inside_the_block_is_theirs(tell: Tell, outside: Outside) -> None:
    async def story(user: User) -> None:
        await user.begin()
        async with user.join(WHAT) as once:
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block's end is what is tested
                async with user.savepoint():
                    await user.insert(7)
                    raise ZeroDivisionError
            async with user.savepoint():
                await user.insert()
            once.answer = MADE
        await user.commit()

    tell(story)
    assert (outside.rows(), outside.states) == ([1], [State.SUCCEEDED])


# --- what is refused ---


def test_a_savepoint_is_refused(tell: Tell, outside: Outside) -> None:
    async def story(user: User) -> None:
        await user.begin()
        await user.insert(7)
        with pytest.raises(JoinRefused, match="savepoint"):
            async with user.savepoint():
                await never(user)
        await user.commit()

    tell(story)
    assert (outside.rows(), outside.states) == ([7], [])


def test_without_a_transaction_it_is_refused(tell: Tell, outside: Outside) -> None:
    async def story(user: User) -> None:
        if user.autobegins:
            if not isinstance(user, (Psycopg, AsyncPsycopg)):
                return
            done = user.target.set_autocommit(True)
            if user.asynchronous:
                await done
        with pytest.raises(JoinRefused, match="nothing would be committed together; join inside"):
            await never(user)

    tell(story)
    assert outside.states == []


def test_a_failed_transaction_is_refused(tell: Tell, outside: Outside) -> None:
    async def story(user: User) -> None:
        await user.begin()
        with pytest.raises(SWALLOWED):
            await user.execute("SELECT 1/0")
        with pytest.raises(SemelError):
            await never(user)
        await user.rollback()
        await user.begin()
        await makes(user)
        await user.commit()

    tell(story)
    assert (outside.rows(), outside.states) == ([1], [State.SUCCEEDED])


@pytest.mark.parametrize("migrated", [False, True])
@pytest.mark.parametrize("made", USERS, ids=lambda made: made.__name__)
def test_another_database_is_refused(made: type[User], conninfo: str, outside: Outside, migrated: bool) -> None:
    database = f"semel_other_{os.getpid()}"
    with psycopg.connect(conninfo, autocommit=True) as admin:
        if not admin.execute("SELECT FROM pg_database WHERE datname = %s", (database,)).fetchall():
            admin.execute(f"CREATE DATABASE {database}")
    other = conninfo.removesuffix("postgres") + database
    empty_schema(other, schema())
    if migrated:
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
def test_what_is_no_connection_is_refused(made: type[User], conninfo: str, thing: Any) -> None:
    async def story() -> None:
        async with someone(made, conninfo) as user:
            connection, user.target = user.target, thing
            with pytest.raises(JoinRefused, match="cannot be joined here; with Engine pass"):
                await never(user)
            user.target = connection

    asyncio.run(story())


@pytest.mark.parametrize(("made", "wrong"), [(Psycopg, AsyncPsycopg), (Psycopg, Asyncpg), (AsyncPsycopg, Psycopg)])
def test_the_other_worlds_connection_is_refused(made: type[User], wrong: type[User], conninfo: str) -> None:
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


def test_a_command_that_is_not_atomic_is_refused(tell: Tell, outside: Outside) -> None:
    async def story(user: User) -> None:
        await user.begin()
        with pytest.raises(PolicyError, match="effects='atomic'"):
            await never(user, command(policy=Policy(effects="external")))

    tell(story)
    assert outside.states == []


# --- transactions that end early, or break ---


def test_an_early_commit_is_told_and_unknown(tell: Tell, outside: Outside) -> None:
    async def story(user: User) -> None:
        await user.begin()
        with pytest.raises(EarlyCommit):  # noqa: PT012 - the block's end is what is tested
            async with user.join(WHAT) as once:
                await user.insert()
                await user.commit()
                once.answer = MADE
        await user.begin()
        with pytest.raises(OutcomeUnknownError, match="committed-early"):
            await never(user)
        await user.rollback()

    tell(story)
    assert (outside.rows(), outside.states) == ([1], [State.UNKNOWN])


def test_an_early_rollback_is_told_and_nothing_more_is_committed(tell: Tell, outside: Outside) -> None:
    async def story(user: User) -> None:
        await user.begin()
        with pytest.raises((SupersededError, StoreUnavailable)):  # noqa: PT012 - the block's end is what is tested
            async with user.join(WHAT) as once:
                await user.insert(1)
                await user.rollback()
                await user.begin()
                await user.insert(2)
                once.answer = MADE
        with suppress(Exception):
            await user.commit()  # against the advice
        if user.autobegins:
            await user.rollback()
        await user.begin()
        await makes(user, n=3)
        await user.commit()

    tell(story)
    assert 1 not in outside.rows()
    assert outside.rows()[-1] == 3
    assert outside.states == [State.SUCCEEDED]


def test_a_statement_error_that_is_swallowed_commits_nothing(tell: Tell, outside: Outside) -> None:
    async def story(user: User) -> None:
        await user.begin()
        with pytest.raises(StoreUnavailable, match="roll it back"):  # noqa: PT012 - the block's end is what is tested
            async with user.join(WHAT) as once:
                await user.insert()
                with pytest.raises(SWALLOWED):
                    await user.execute("SELECT 1/0")
                once.answer = MADE
        with suppress(Exception):
            await user.commit()  # against the advice

    tell(story)
    assert (outside.rows(), outside.states) == ([], [])


# --- others meanwhile ---


def test_a_running_duplicate_is_in_progress_at_once_and_harms_nothing(
    tell: Tell, conninfo: str, outside: Outside
) -> None:
    holder = Engine(postgres_backend(conninfo, schema=schema()))

    async def story(user: User) -> None:
        await user.begin()
        with pytest.raises(InProgressError):
            await never(user)
        await user.insert(2)
        await user.commit()

    def handler(permit: Permit) -> Answer:
        tell(story)
        assert outside.rows() == [2]
        return MADE

    assert holder.run(WHAT, handler).answer == MADE
    holder.close()
    assert (outside.rows(), outside.states) == ([2], [State.SUCCEEDED])


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
def test_the_users_rows_and_adapters_are_theirs(made: type[User], conninfo: str) -> None:
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


@pytest.mark.parametrize("made", USERS, ids=lambda made: made.__name__)
def test_one_of_many_wins(made: type[User], conninfo: str, outside: Outside) -> None:
    """Eight transactions with one key, at once: one effect, and everybody else is told so."""
    met: list[str] = []

    async def one(user: User) -> None:
        await user.begin()
        try:
            async with user.join(WHAT) as once:
                if not once.replayed:
                    await user.insert()
                    await asyncio.sleep(0)
                    once.answer = MADE
                met.append("replayed" if once.replayed else "made")
            await user.commit()
        except InProgressError:
            met.append("in progress")
            await user.rollback()

    async def story() -> None:
        count = 1 if made.__name__ == "Django" else 4  # Django has one connection a thread
        users = [made(conninfo) for _ in range(count)]
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
        for user in users:
            await user.open(conninfo)
        await asyncio.gather(*[one(user) for user in users])
        for user in users:
            await user.end()

    asyncio.run(story())
    assert met.count("made") == 1
    assert (outside.rows(), outside.states) == ([1], [State.SUCCEEDED])


def test_an_engine_of_either_kind_says_what_it_joins(conninfo: str) -> None:
    assert isinstance(AsyncEngine(postgres_backend(conninfo)).backend.joins, Callable)  # type: ignore[arg-type]


@pytest.mark.parametrize("emits", [False, True])
def test_a_savepoint_that_is_open_at_the_settlement_is_refused(tell: Tell, outside: Outside, emits: bool) -> None:
    async def story(user: User) -> None:
        async def leaves_it_open() -> None:
            async with user.join(WHAT) as once:
                left_open.append(user.savepoint())
                await left_open[0].__aenter__()
                await user.insert()
                if once.permit is not None and emits:
                    once.permit.emit("made", {})
                once.answer = MADE

        await user.begin()
        with pytest.raises(JoinRefused, match="savepoint that was opened inside this block is still open"):
            await leaves_it_open()
        with suppress(Exception):  # what a library thinks of the end of its savepoint is its own
            await left_open[0].__aexit__(KeyError, KeyError(), None)
        await user.rollback()

    left_open: list[Any] = []
    tell(story)
    assert (outside.rows(), outside.states) == ([], [])


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


@pytest.mark.parametrize("made", USERS, ids=lambda made: made.__name__)
def test_a_joined_block_replays_on_a_read_only_server(made: type[User], conninfo: str, reading_role: str) -> None:
    async def story() -> None:
        async with someone(made, conninfo) as user:
            await user.begin()
            await makes(user)
            await user.commit()
        async with someone(made, conninfo.replace("postgres@", f"{reading_role}@")) as reader:
            await reader.begin()
            async with reader.join(command(policy=ATOMIC)) as once:
                assert once.replayed
                assert once.answer == MADE
            await reader.rollback()
            await reader.begin()
            with pytest.raises(StoreReadOnly):
                await makes(reader, "new", 2)
            await reader.rollback()

    asyncio.run(story())
