"""Items that write by SQLAlchemy's session on their chunk's connection, on each database and client library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from semel import ItemFailed
from semel.bulk.declaration import BulkItem
from semel.bulk.rules import ItemState
from semel.errors import PolicyError
from semel.stores.sql.sqlalchemy import session_on
from semel.stores.sql.sqlalchemy_async import async_session_on
from tests.bulk.fellows import SYNC, Fellow, Home, states, write
from tests.bulk.lists import number_items
from tests.bulk.rows import Effect

Make = Callable[..., Fellow]


class Session:
    """One form for the sessions of both colours."""

    def __init__(self, kind: str, connection: Any) -> None:
        self.is_async = kind not in SYNC and kind != "sqlite-async"
        self.made: Any = async_session_on(connection) if self.is_async else session_on(connection)

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.call("close")

    async def call(self, name: str, *args: Any) -> Any:
        done = getattr(self.made, name)(*args)
        return await done if self.is_async and name != "add" else done


async def add(session: Session, n: int) -> None:
    await session.call("add", Effect(n=n))
    await session.call("flush")


def test_each_items_rows_are_committed_with_its_outcome_and_undone_with_its_failure(
    make_fellow: Make, home: Home
) -> None:
    fellow = make_fellow(chunk_items=4)

    async def handle(item: BulkItem) -> str:
        n = item.value["n"]
        if n == 1:
            await write(item, 100)  # on the connection itself, which the session keeps
        async with Session(fellow.kind, item.connection) as session:
            await add(session, n)
            if n == 3:
                raise ItemFailed("NO", written=True)
            if n == 5:
                raise ValueError("it is wrong")
            await session.call("commit")
        return f"r-{n}"

    done = fellow.run(number_items(9), handler=handle)
    assert (done.tally.succeeded, done.tally.failed) == (7, 2)
    assert home.effects() == [0, 1, 2, 4, 6, 7, 8, 100]
    failed = [outcome.place for outcome in fellow.outcomes(done) if outcome.state is ItemState.FAILED]
    assert failed == [3, 5]
    assert fellow.run(number_items(9), handler=handle).replayed


def test_a_sessions_rollback_undoes_its_own_item_alone(make_fellow: Make, home: Home) -> None:
    fellow = make_fellow(chunk_items=10)

    async def handle(item: BulkItem) -> str:
        n = item.value["n"]
        if n == 1:
            await write(item, 100)  # without a commit of its own
            return "raw"
        async with Session(fellow.kind, item.connection) as session:
            await add(session, n)
            if n == 2:
                await session.call("rollback")
                await add(session, 200)
            if n == 3:
                try:
                    await add(session, 0)
                except IntegrityError as error:
                    await session.call("rollback")
                    raise ItemFailed("TAKEN", written=True) from error
            await session.call("commit")
        return f"r-{n}"

    done = fellow.run(number_items(5), handler=handle)
    assert states(fellow.outcomes(done)).count(ItemState.FAILED) == 1
    assert home.effects() == [0, 4, 100, 200]


def test_a_rollback_without_a_session_stops_the_bulk_also_behind_an_item_with_one(
    make_fellow: Make, home: Home
) -> None:
    fellow = make_fellow(chunk_items=10)
    if fellow.kind == "asyncpg":  # its connections have no rollback
        return

    async def handle(item: BulkItem) -> None:
        if item.place == 2:
            item.connection.rollback()
        async with Session(fellow.kind, item.connection) as session:
            await add(session, item.value["n"])
            await session.call("commit")

    with pytest.raises(PolicyError, match="may not roll"):
        fellow.run(number_items(4), handler=handle)
    assert home.effects() == []
