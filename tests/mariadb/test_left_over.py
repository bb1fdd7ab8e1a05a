"""A statement that a handler left under way: its answer is never taken for one to Semel, nor for the next command's.

An ordinary way to come there is a ``gather`` of a statement and another call, which fails first.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import asyncmy.errors
import pymysql
import pytest

from semel import Answer, Permit
from semel.core.model import State
from semel.errors import NothingHappened, StoreUnavailable
from tests.engine.shells import MADE, command, until
from tests.mariadb.conftest import ATOMIC, WHAT, Fellow, Outside, Writes
from tests.servers.mariadb import MARK

pytestmark = MARK
LOCK = "CONCAT('left_', DATABASE())"  # locks are the server's, and others run these tests beside us
WAITS = f"SELECT GET_LOCK({LOCK}, 20)"
ERRORS = (pymysql.MySQLError, asyncmy.errors.MySQLError)


class Left:
    """Work that still runs when its handler has ended: in a task, or in a thread."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._ends: Callable[[], Awaitable[None]] = self._nothing
        assert outside.fetch(f"SELECT GET_LOCK({LOCK}, 0)") == [(1,)]

    async def _nothing(self) -> None:
        return

    def _is_under_way(self) -> bool:
        [(found,)] = self._outside.fetch(
            "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND state = 'User lock'"
        )
        return bool(found)

    async def begin(self, db: Writes) -> None:
        if isinstance(db.connection, pymysql.connections.Connection):
            thread = threading.Thread(target=self._in_thread, args=(db.connection,))
            thread.start()

            async def join_thread() -> None:
                thread.join()

            self._ends = join_thread
            while not self._is_under_way():  # nothing else runs where threads are
                pass
            return
        task = asyncio.create_task(self._in_task(db))

        async def await_task() -> None:
            await task

        self._ends = await_task
        await until(self._is_under_way)

    def _in_thread(self, connection: Any) -> None:
        with suppress(*ERRORS, AttributeError):  # as the library says that another thread has closed it meanwhile
            connection.query(WAITS)

    async def _in_task(self, db: Writes) -> None:
        with suppress(*ERRORS):
            await db.execute(WAITS)

    async def end(self) -> None:
        self._outside.fetch(f"SELECT RELEASE_LOCK({LOCK})")
        await self._ends()


@pytest.fixture
def left(fellow: Fellow, outside: Outside) -> Any:
    made = Left(outside)
    yield made
    fellow.tell(made.end())


def check_others(fellow: Fellow, outside: Outside) -> None:
    """The next commands get their own replies."""

    async def other(permit: Permit, db: Writes) -> Answer:
        rows = await db.execute("SELECT 7 FROM semel_record")  # its own claim's
        await db.insert(outside.rows()[-1] + 1 if outside.rows() else 7)
        return Answer(200, (), str(rows).encode())

    for number, key in enumerate("bc", start=1):
        result = fellow.run(command(key, policy=ATOMIC), other)
        assert (result.answer.body, result.replayed) == (str([(7,)] * number).encode(), False)
    assert outside.rows() == [7, 8]
    assert fellow.run(command("b", policy=ATOMIC), other).replayed


def test_a_settlement_never_uses_another_statements_answer(fellow: Fellow, outside: Outside, left: Left) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        await left.begin(db)
        return MADE

    with pytest.raises(StoreUnavailable, match="await each one"):
        fellow.run(WHAT, handler)
    assert (outside.states, outside.rows()) == ([], [])
    check_others(fellow, outside)


def test_a_rollbacks_reply_is_not_read_by_the_next_command(fellow: Fellow, outside: Outside, left: Left) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        await left.begin(db)
        raise NothingHappened("the other call failed")

    with pytest.raises(NothingHappened):
        fellow.run(WHAT, handler)
    assert (outside.states, outside.rows()) == ([], [])
    check_others(fellow, outside)


def test_two_statements_at_once_are_refused(fellow: Fellow, outside: Outside, left: Left) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await left.begin(db)
        with pytest.raises(ERRORS, match="under way"):
            await db.insert()
        await left.end()
        await db.insert(7)
        return MADE

    assert fellow.run(WHAT, handler).answer == MADE
    assert (outside.states, outside.rows()) == ([State.SUCCEEDED], [7])
