"""Joining the user's own transaction on MariaDB, through PyMySQL, asyncmy and SQLAlchemy over each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import asyncmy
import pymysql
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from semel.core.model import State
from semel.errors import (
    EarlyCommit,
    InProgressError,
    JoinRefused,
    StatementRefused,
    StoreReadOnly,
    StoreUnavailable,
    SupersededError,
)
from semel.stores.mariadb.protocol import MariadbServer
from tests.engine.shells import MADE, command
from tests.mariadb.conftest import ATOMIC, WHAT, Fellow, Outside, Writes
from tests.servers.mariadb import MARK, connect

pytestmark = MARK
How = Literal["pymysql", "asyncmy", "session", "async session"]
HOWS: tuple[How, ...] = ("pymysql", "asyncmy", "session", "async session")


class User:
    """A user with a connection of one sort, and an engine for it."""

    def __init__(self, how: How, server: MariadbServer, **options: Any) -> None:
        self.how = how
        self.fellow = Fellow("asyncmy" if how in ("asyncmy", "async session") else "pymysql", server)
        given: dict[str, Any] = {"host": server.host, "port": server.port, "user": server.user}
        given |= {"database": server.database, "charset": "utf8mb4", **options}
        address = f"{server.user}@{server.host}:{server.port}/{server.database}?charset=utf8mb4"
        match how:
            case "pymysql":
                self.target: Any = pymysql.connect(**given)
            case "asyncmy":
                self.target = self.tell(_connected(given))
            case "session":
                self.engine: Any = create_engine(f"mysql+pymysql://{address}", poolclass=NullPool)
                self.target = Session(self.engine)
            case "async session":
                self.engine = create_async_engine(f"mysql+asyncmy://{address}", poolclass=NullPool)
                self.target = AsyncSession(self.engine)

    def tell(self, story: Any) -> Any:
        return story if self.fellow.runner is None else self.fellow.runner.run(story)

    async def _execute(self, statement: str) -> None:
        if self.how == "async session":
            await self.target.execute(text(statement))
        else:
            await Writes(self.target).execute(statement)

    def execute(self, statement: str) -> None:
        if self.how == "session":
            self.target.execute(text(statement))
        elif self.how == "pymysql":
            self.target.cursor().execute(statement)
        else:
            self.tell(self._execute(statement))

    def say(self, name: str, *arguments: Any) -> None:
        self.tell(getattr(self.target, name)(*arguments))

    def join(self, inside: Callable[[], None], key: str = "k") -> bool:
        """Join, do something, and answer; whether it was replayed."""
        block = self.fellow.engine.atomic(self.target, command(key, policy=ATOMIC))
        if self.fellow.runner is None:
            with block as once:
                if not once.replayed:
                    inside()
                    once.answer = MADE
            return bool(once.replayed)

        async def joined() -> Any:
            return await block.__aenter__()

        async def left(*how: Any) -> None:
            await block.__aexit__(*how)

        once = self.tell(joined())
        try:
            if not once.replayed:
                inside()
                once.answer = MADE
        except BaseException as error:
            self.tell(left(type(error), error, None))
            raise
        self.tell(left(None, None, None))
        return bool(once.replayed)

    def close(self) -> None:
        if self.how == "asyncmy":
            self.tell(self.target.ensure_closed())
        elif self.how == "async session":
            self.tell(self.target.close())
            self.tell(self.engine.dispose())
        elif self.how == "session":
            self.target.close()
            self.engine.dispose()
        elif self.target.open:
            self.target.close()
        self.fellow.close()


async def _connected(given: dict[str, Any]) -> Any:
    return await asyncmy.connect(**given)


@pytest.fixture(params=HOWS)
def user(request: pytest.FixtureRequest, server: MariadbServer) -> Iterator[User]:
    made = User(request.param, server)
    yield made
    made.close()


def nothing() -> None:
    """The handler does nothing."""


def test_the_users_commit_makes_the_record_and_the_writes_final(user: User, outside: Outside) -> None:
    user.execute("INSERT INTO effect VALUES (1)")  # the transaction has begun, and has written
    assert user.join(lambda: user.execute("INSERT INTO effect VALUES (2)")) is False
    assert (outside.rows(), outside.states) == ([], [])
    user.say("commit")
    assert (outside.rows(), outside.states) == ([1, 2], [State.SUCCEEDED])
    assert user.join(lambda: pytest.fail("it runs again")) is True
    user.execute("INSERT INTO effect VALUES (3)")
    user.say("commit")
    assert outside.rows() == [1, 2, 3]


def test_without_the_users_commit_nothing_remains_and_the_key_is_free(user: User, outside: Outside) -> None:
    assert user.join(lambda: user.execute("INSERT INTO effect VALUES (1)")) is False
    user.say("rollback")
    assert (outside.rows(), outside.states) == ([], [])
    assert user.join(lambda: user.execute("INSERT INTO effect VALUES (1)")) is False
    user.say("commit")
    assert (outside.rows(), outside.states) == ([1], [State.SUCCEEDED])


def test_a_running_duplicate_is_in_progress_at_once_and_harms_nothing(
    user: User, server: MariadbServer, outside: Outside
) -> None:
    other = User("pymysql", server)

    def meanwhile() -> None:
        other.execute("INSERT INTO effect VALUES (7)")
        with pytest.raises(InProgressError):
            other.join(nothing)
        other.say("commit")

    try:
        user.join(meanwhile)
        user.say("commit")
    finally:
        other.close()
    assert (outside.rows(), outside.states) == ([7], [State.SUCCEEDED])


@pytest.mark.parametrize("word", ["COMMIT", "CREATE OR REPLACE TABLE theirs (n int)"])
def test_an_early_commit_is_told_and_unknown(user: User, outside: Outside, word: str) -> None:
    with pytest.raises(EarlyCommit):
        user.join(lambda: user.execute(word))
    user.say("rollback")
    assert outside.states == [State.UNKNOWN]


def test_an_early_rollback_is_told(user: User, outside: Outside) -> None:
    with pytest.raises((SupersededError, StoreUnavailable)):
        user.join(lambda: user.execute("ROLLBACK"))
    user.say("rollback")
    assert outside.states == []


def test_autocommit_is_refused(server: MariadbServer, outside: Outside) -> None:
    for how in ("pymysql", "asyncmy"):
        user = User(how, server, autocommit=True)
        with pytest.raises(JoinRefused, match="autocommit"):
            user.join(nothing)
        user.say("begin")  # a transaction all the same
        user.join(nothing, key=how)
        user.say("commit")
        user.close()
    assert outside.states == [State.SUCCEEDED, State.SUCCEEDED]


def test_another_database_another_charset_and_a_savepoint_are_refused(server: MariadbServer, outside: Outside) -> None:
    elsewhere = User("pymysql", server, database="mysql")
    with pytest.raises(JoinRefused, match="another database"):
        elsewhere.join(nothing)
    elsewhere.close()
    latin = User("asyncmy", server, charset="latin1")
    with pytest.raises(JoinRefused, match="utf8mb4"):
        latin.join(nothing)
    latin.close()
    nested = User("session", server)
    with nested.target.begin_nested(), pytest.raises(JoinRefused, match="savepoint"):
        nested.join(nothing)
    nested.close()
    assert outside.states == []


@pytest.mark.parametrize("user", ["pymysql", "asyncmy"], indirect=True)
def test_a_connection_that_has_gone_elsewhere_since_is_refused(user: User, outside: Outside, other: str) -> None:
    """It was admitted before, and is asked again with each claim."""
    user.join(nothing)
    user.say("commit")
    user.execute(f"USE `{other}`")
    with pytest.raises(StatementRefused, match="in another database"):
        user.join(lambda: pytest.fail("nobody is granted there"), key="other")
    user.say("rollback")
    assert outside.states == [State.SUCCEEDED]


def test_what_is_no_connection_of_this_kind_is_refused(server: MariadbServer) -> None:
    with connect(server.port) as blocking:
        fellow = Fellow("asyncmy", server)
        assert fellow.runner is not None

        async def joins(thing: object) -> None:
            async with fellow.engine.atomic(thing, WHAT):
                pytest.fail("joined")

        for thing in (blocking, object()):
            with pytest.raises(JoinRefused, match="AsyncEngine: an asyncmy connection"):
                fellow.runner.run(joins(thing))
        fellow.close()
    closed = User("pymysql", server)
    closed.target.close()
    with pytest.raises(JoinRefused, match="closed"):
        closed.join(nothing)
    closed.close()


def test_a_savepoint_that_is_open_at_the_settlement_cannot_take_the_writes_back(user: User, outside: Outside) -> None:
    def nests() -> None:
        if user.how == "session":
            user.target.begin_nested()
        elif user.how == "async session":
            user.tell(_begun(user.target.begin_nested()))
        else:
            user.execute("SAVEPOINT mine")
        user.execute("INSERT INTO effect VALUES (1)")

    if "session" in user.how:
        with pytest.raises(JoinRefused, match="still open"):
            user.join(nests)
        user.say("rollback")
        assert (outside.rows(), outside.states) == ([], [])
    else:
        user.join(nests)
        with pytest.raises((pymysql.MySQLError, asyncmy.errors.MySQLError), match="SAVEPOINT mine does not exist"):
            user.execute("ROLLBACK TO SAVEPOINT mine")
        user.say("commit")
        assert (outside.rows(), outside.states) == ([1], [State.SUCCEEDED])


async def _begun(nested: Any) -> None:
    await nested


def test_a_read_only_transaction_replays_and_runs_nothing(user: User, outside: Outside) -> None:
    user.join(lambda: user.execute("INSERT INTO effect VALUES (1)"))
    user.say("commit")
    user.execute("START TRANSACTION READ ONLY")
    assert user.join(lambda: pytest.fail("it runs again")) is True
    user.say("rollback")
    user.execute("START TRANSACTION READ ONLY")
    with pytest.raises(StoreReadOnly):
        user.join(lambda: pytest.fail("it runs"), "new")
    user.say("rollback")
    assert (outside.rows(), outside.states) == ([1], [State.SUCCEEDED])
