"""SQLAlchemy's sessions on the connection of a unit that Semel opened on MariaDB, through both libraries."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import bindparam, text, update

from semel import Answer, Permit
from semel.core.model import State
from semel.errors import ConfigurationError
from semel.stores.sql import sqlalchemy as alchemy
from semel.stores.sql.sqlalchemy_async import async_session_on
from tests.atomic.mapped import Visit
from tests.atomic.sessions import HABITS, Habit, Talk
from tests.engine.shells import MADE, command
from tests.mariadb.conftest import ATOMIC, WHAT, Fellow, Outside, Writes, never


def session_of(permit: Permit) -> Talk:
    """A session of the kind that fits the connection."""
    made: Any = alchemy.session_on if _is_sync(permit) else async_session_on
    return Talk(made(permit.connection))


def _is_sync(permit: Permit) -> bool:
    return type(permit.unit).__name__ == "PymysqlUnit"


@pytest.fixture(params=[False, True], ids=["met", "unmet"])
def is_new(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether SQLAlchemy meets the server for the first time in this process."""
    if request.param:
        monkeypatch.setattr(alchemy, "_known", {})
    return bool(request.param)


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("ends", ["made", "fails"])
def test_a_session_on_a_unit_commits_with_it_or_not_at_all(
    fellow: Fellow, outside: Outside, habit: Habit, ends: str, is_new: bool
) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        talk = session_of(permit)
        await habit(talk)
        await talk.say("close")
        assert (outside.rows(), outside.states) == ([], [])
        if ends == "fails":
            raise KeyError
        return MADE

    for _ in range(1 if is_new else 2):
        if ends == "fails":
            with pytest.raises(KeyError):
                fellow.run(WHAT, handler)
            assert (outside.rows(), outside.states) == ([], [])
        else:
            assert fellow.run(WHAT, handler).answer == MADE
            assert (outside.rows(), outside.states) == ([1], [State.SUCCEEDED])
            handler = never


def test_writes_before_the_session_are_committed(fellow: Fellow, outside: Outside, is_new: bool) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert(5)
        talk = session_of(permit)
        await talk.add(1)
        await talk.say("commit")
        await talk.say("close")
        return MADE

    fellow.run(WHAT, handler)
    assert outside.rows() == [1, 5]


def test_a_server_is_asked_about_itself_once_in_a_process(
    fellow: Fellow, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alchemy, "_known", {})

    async def handler(permit: Permit, db: Writes) -> Answer:
        talk = session_of(permit)
        await talk.say("execute", text("SELECT 1"))
        await talk.say("close")
        return MADE

    fellow.run(command("first", policy=ATOMIC), handler)
    [(dialect, compiled)] = alchemy._known.values()
    asked: list[Any] = []
    monkeypatch.setattr(type(dialect), "initialize", lambda *_: asked.append(1))
    fellow.run(command("second", policy=ATOMIC), handler)
    assert (asked, len(compiled)) == ([], 1)  # and a statement is compiled once
    assert len(alchemy._known) == 1


def test_an_update_counts_the_rows_that_it_found(fellow: Fellow, outside: Outside) -> None:
    """As on SQLAlchemy's own connections: an ORM takes a row that is not found for one that another has deleted."""
    outside.fetch("CREATE OR REPLACE TABLE visit (n integer PRIMARY KEY, at datetime)")
    outside.fetch("INSERT INTO visit VALUES (1, '2026-11-27 12:00:00'), (2, '2026-11-27 12:00:00')")

    async def handler(permit: Permit, db: Writes) -> Answer:
        talk = session_of(permit)
        visit = await talk.say("get", Visit, 1)
        for second in (0, 0, 1):  # the column keeps no fraction: the first two change nothing
            visit.at = datetime(2026, 11, 27, 12, 0, second, 400_000)
            await talk.say("flush")
        found = [
            (await talk.say("execute", text(words))).rowcount
            for words in (
                "UPDATE visit SET n = n",
                "/* why */ update visit SET n = n WHERE n = 2",
                "UPDATE visit SET n = n WHERE n = 3",
                "INSERT IGNORE INTO visit (n) VALUES (2), (3)",
                "DELETE FROM visit WHERE n = 3",
            )
        ]
        same = update(Visit).where(Visit.n == bindparam("known")).values(n=Visit.n)
        connection = await talk.say("connection")
        many = connection.execute(same, [{"known": 1}, {"known": 2}, {"known": 3}])
        many = (await many if isinstance(many, Awaitable) else many).rowcount
        cursor = permit.connection.cursor()  # the handler's own counts as its library does
        own = cursor.execute("UPDATE visit SET n = n")
        own = await own if isinstance(own, Awaitable) else own
        await talk.say("commit")
        assert (found, many, own) == ([2, 1, 0, 1, 1], 2, 0)
        return MADE

    assert fellow.run(WHAT, handler).answer == MADE
    assert outside.fetch("SELECT n, second(at) FROM visit ORDER BY n") == [(1, 1), (2, 0)]


def test_a_sync_or_async_session_on_the_other_kind_of_unit_is_refused(fellow: Fellow) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        wrong: Any = async_session_on if _is_sync(permit) else alchemy.session_on
        with pytest.raises(ConfigurationError, match=r"session_on of semel\.stores\.sql\.sqlalchemy"):
            wrong(permit.connection)
        return MADE

    assert fellow.run(WHAT, handler).answer == MADE
