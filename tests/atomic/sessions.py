"""Sessions of SQLAlchemy on the connection of a unit, written once for Session and AsyncSession."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from tests.atomic.mapped import Effect

Habit = Callable[["Talk"], Awaitable[None]]


class Talk:
    """A session of either colour, awaited alike: a synchronous one never waits here."""

    def __init__(self, session: Any) -> None:
        self.session = session

    async def say(self, name: str, *arguments: Any) -> Any:
        """A method of the session's."""
        done = getattr(self.session, name)(*arguments)
        return await done if isinstance(done, Awaitable) else done

    async def add(self, n: int) -> None:
        """Write a row; it is flushed at once."""
        self.session.add(Effect(n=n))
        await self.say("flush")

    async def rows(self) -> list[int]:
        """Return the rows that the session reads."""
        return sorted((await self.say("scalars", select(Effect.n))).all())

    @asynccontextmanager
    async def begin_nested(self) -> AsyncIterator[Any]:
        """A savepoint of the session's own."""
        made: Any = self.session.begin_nested()
        if hasattr(made, "__aenter__"):
            async with made as entered:
                yield entered
        else:
            with made as entered:
                yield entered


async def _commits(talk: Talk) -> None:
    await talk.add(1)
    await talk.say("commit")


async def _commits_twice(talk: Talk) -> None:
    await _commits(talk)
    await talk.say("commit")


async def _rolls_back(talk: Talk) -> None:
    await talk.add(7)
    await talk.say("rollback")
    await _commits(talk)


async def _nests(talk: Talk) -> None:
    await _commits(talk)
    with suppress(KeyError):
        async with talk.begin_nested():
            await talk.add(7)
            raise KeyError
    async with talk.begin_nested():
        assert await talk.rows() == [1]
    await talk.say("commit")


async def _survives_an_error(talk: Talk) -> None:
    await _commits(talk)
    talk.session.expunge_all()
    with pytest.raises(IntegrityError):
        await talk.add(1)
    await talk.say("rollback")
    assert await talk.rows() == [1]


async def _core(talk: Talk) -> None:
    await talk.say("execute", text("INSERT INTO effect VALUES (:n)"), {"n": 1})
    await talk.say("commit")


async def _closes_without_a_commit(talk: Talk) -> None:
    await _commits(talk)
    await talk.add(7)


HABITS: list[Habit] = [
    *(_commits, _commits_twice, _rolls_back, _nests, _survives_an_error, _core, _closes_without_a_commit)
]
