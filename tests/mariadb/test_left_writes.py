"""What a ROLLBACK leaves in a MariaDB table without transactions is not written again by bulks, inboxes or steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pymysql
import pytest

from semel import Answer, ItemFailed
from semel.bulk.declaration import BulkItem
from semel.bulk.rules import ItemState, Tally
from semel.core.model import State
from semel.errors import EarlyCommit, OutcomeUnknownError
from semel.inbox.run import Message
from semel.inbox.store import Receipt
from tests.bulk.fellows import Fellow, Home, mariadb_home, write
from tests.bulk.lists import number_items
from tests.inbox.conftest import Consumer
from tests.steps.conftest import Process, Run, step_command

KINDS = ("pymysql", "asyncmy")
DEADLOCK = pymysql.err.OperationalError(1213, "Deadlock found")  # after which a unit's work is done over


class Failed(Exception):
    """The handler gives up."""


class Killed(BaseException):
    """The thread is stopped from outside."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def home() -> Home:
    """A database with a table of the application's that knows no transactions."""
    made = mariadb_home()
    made.fetch("CREATE OR REPLACE TABLE log (n integer) ENGINE = MyISAM")
    return made


@pytest.fixture
def fellow(kind: str, home: Home) -> Iterator[Fellow]:
    made = Fellow(kind, home, chunk_items=3)
    yield made
    made.close()


@pytest.fixture
def consumer(kind: str, home: Home) -> Iterator[Consumer]:
    made = Consumer(kind, home, tries_max=5)
    yield made
    made.close()


async def log(connection: Any, n: int) -> None:
    """Write one row that no rollback undoes."""
    done = connection.cursor().execute(f"INSERT INTO log VALUES ({n})")
    if isinstance(done, Awaitable):
        await done


def read_log(home: Home) -> list[int]:
    return sorted(n for (n,) in home.fetch("SELECT n FROM log"))


def fails_at(n: int, error: BaseException) -> Callable[[BulkItem], Any]:
    async def handler(item: BulkItem) -> None:
        await write(item, item.value["n"])
        await log(item.connection, item.value["n"])
        if item.value["n"] == n:
            raise error

    return handler


@pytest.mark.parametrize("error", [Failed(), ItemFailed("NO")], ids=["raises", "fails"])
def test_items_whose_writes_remain_are_unknown_and_never_run_again(
    fellow: Fellow, home: Home, error: Exception
) -> None:
    handler = fails_at(1, error)
    with pytest.raises(EarlyCommit, match="2 items are UNKNOWN"):
        fellow.run(number_items(4), handler)
    assert (home.effects(), read_log(home)) == ([], [0, 1])
    done = fellow.run(number_items(4), handler)
    assert done.tally == Tally(4, 4, 2, 0, 0, 2)
    assert [(each.state, each.error_code) for each in fellow.outcomes(done)] == [
        (ItemState.UNKNOWN, "not-rolled-back"),
        (ItemState.UNKNOWN, "not-rolled-back"),
        (ItemState.SUCCEEDED, None),
        (ItemState.SUCCEEDED, None),
    ]
    assert (home.effects(), read_log(home)) == ([2, 3], [0, 1, 2, 3])


def test_items_of_an_interrupted_run_whose_writes_remain_are_unknown(fellow: Fellow, home: Home) -> None:
    with pytest.raises(Killed):
        fellow.run(number_items(3), fails_at(1, Killed()))
    done = fellow.run(number_items(3), fails_at(9, Failed()))
    assert done.tally == Tally(3, 3, 1, 0, 0, 2)
    assert (home.effects(), read_log(home)) == ([2], [0, 1, 2])


def test_a_chunk_rolled_back_without_remaining_writes_is_repeated(fellow: Fellow, home: Home) -> None:
    async def handler(item: BulkItem) -> None:
        await write(item, item.value["n"])
        if item.value["n"] == 1:
            raise ItemFailed("NO")

    assert fellow.run(number_items(4), handler).tally == Tally(4, 4, 3, 1, 0, 0)
    assert home.effects() == [0, 2, 3]


@pytest.mark.parametrize("error", [Failed(), Killed()], ids=["raises", "killed"])
def test_a_message_whose_writes_remain_is_parked(consumer: Consumer, home: Home, error: BaseException) -> None:
    async def handler(message: Message) -> None:
        await log(message.connection, 1)
        raise error

    if isinstance(error, Killed):
        with pytest.raises(Killed):
            consumer.handle("m-1", handler)
    else:
        assert consumer.handle("m-1", handler) is Receipt.PARKED
    assert consumer.handle("m-1", handler) is Receipt.PARKED
    [parked] = consumer.list_parked()
    assert parked.reason.startswith("not-rolled-back")
    assert read_log(home) == [1]


def test_a_message_whose_commit_is_refused_and_whose_writes_remain_is_parked(consumer: Consumer, home: Home) -> None:
    async def handler(message: Message) -> None:
        await log(message.connection, 1)
        done = message.connection.cursor().execute("ROLLBACK")
        if isinstance(done, Awaitable):
            await done
        await log(message.connection, 2)

    assert consumer.handle("m-1", handler) is Receipt.PARKED
    assert consumer.handle("m-1", handler) is Receipt.PARKED
    assert read_log(home) == [1, 2]


@pytest.mark.parametrize("error", [Failed(), DEADLOCK], ids=["raises", "deadlock"])
def test_a_local_step_whose_writes_remain_makes_the_operation_unknown(kind: Any, home: Home, error: Exception) -> None:
    process = Process(kind, home.backend(kind))
    what = step_command()

    async def handler(run: Run) -> Answer:
        async def writes(connection: Any) -> None:
            await log(connection, 1)
            raise error

        def writes_here(connection: Any) -> None:
            connection.cursor().execute("INSERT INTO log VALUES (1)")
            raise error

        await run.local("write", writes if process.is_async else writes_here)
        return Answer(201, (), b"")

    try:
        with pytest.raises(type(error)):
            process.run(what, handler)
        assert process.row(what).state == State.UNKNOWN
        with pytest.raises(OutcomeUnknownError, match="not-rolled-back"):
            process.run(what, handler)
    finally:
        process.close()
    assert read_log(home) == [1]
