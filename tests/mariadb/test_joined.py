"""What is particular to joins on MariaDB; what all databases have in common is in ``semel.testing.joins``."""

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
    JoinRefused,
    StatementRefused,
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
                self.target = self.tell(_connect(given))
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

        async def enter_block() -> Any:
            return await block.__aenter__()

        async def left(*how: Any) -> None:
            await block.__aexit__(*how)

        once = self.tell(enter_block())
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


async def _connect(given: dict[str, Any]) -> Any:
    return await asyncmy.connect(**given)


@pytest.fixture(params=HOWS)
def user(request: pytest.FixtureRequest, server: MariadbServer) -> Iterator[User]:
    made = User(request.param, server)
    yield made
    made.close()


def nothing() -> None:
    """The handler does nothing."""


@pytest.mark.parametrize("user", ["pymysql", "asyncmy"], indirect=True)
def test_ddl_that_commits_implicitly_is_an_early_commit(user: User, outside: Outside) -> None:
    with pytest.raises(EarlyCommit):
        user.join(lambda: user.execute("CREATE OR REPLACE TABLE theirs (n int)"))
    user.say("rollback")
    assert outside.states == [State.UNKNOWN]


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
def test_a_connection_that_changed_its_database_is_refused(user: User, outside: Outside, other: str) -> None:
    """It was admitted before, and is asked again with each claim."""
    user.join(nothing)
    user.say("commit")
    user.execute(f"USE `{other}`")
    with pytest.raises(StatementRefused, match="in another database"):
        user.join(lambda: pytest.fail("nobody is granted there"), key="other")
    user.say("rollback")
    assert outside.states == [State.SUCCEEDED]


def test_an_invalid_connection_of_this_kind_is_refused(server: MariadbServer) -> None:
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
