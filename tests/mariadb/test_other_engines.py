"""Tables without transactions on MariaDB: what a ROLLBACK leaves in them makes the outcome UNKNOWN."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pymysql
import pytest

from semel import Answer, Permit
from semel.core.model import State
from semel.errors import EarlyCommit, OutcomeUnknownError
from semel.stores.mariadb.protocol import MariadbServer
from tests.engine.shells import MADE, command
from tests.mariadb.conftest import ATOMIC, WHAT, Fellow, Outside, Writes, insert_and_answer, never
from tests.servers.mariadb import connect
from tests.servers.redis import eventually


@pytest.fixture(params=["MyISAM", "Aria"])
def log(request: pytest.FixtureRequest, outside: Outside) -> None:
    """A table of the application's that knows no transactions."""
    outside.fetch("DROP TABLE IF EXISTS log")
    outside.fetch(f"CREATE TABLE log (n integer) ENGINE={request.param}")


class Failed(Exception):
    """The handler gives up."""


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    "ends", [Failed(), Answer(409, (), b"refused"), Answer(500, (), b"")], ids=["raises", "refuses", "fails"]
)
def test_writes_that_a_rollback_leaves_are_made_once_and_the_outcome_is_unknown(
    fellow: Fellow, outside: Outside, ends: Answer | Failed
) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        await db.execute("INSERT INTO log VALUES (1)")
        if isinstance(ends, Failed):
            raise ends
        return ends

    with pytest.raises(EarlyCommit, match="table without transactions"):
        fellow.run(WHAT, handler)
    assert (outside.rows(), outside.rows("log"), outside.states) == ([], [1], [State.UNKNOWN])
    for _ in range(2):
        with pytest.raises(OutcomeUnknownError, match="not-rolled-back"):
            fellow.run(WHAT, never)
    assert fellow.run(command("other", policy=ATOMIC), insert_and_answer).answer == MADE


@pytest.mark.usefixtures("log")
def test_a_rollback_of_other_tables_alone_frees_the_key(fellow: Fellow, outside: Outside) -> None:
    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        raise Failed

    with pytest.raises(Failed):
        fellow.run(WHAT, handler)
    assert fellow.run(WHAT, insert_and_answer).answer == MADE
    assert (outside.rows(), outside.rows("log"), outside.states) == ([1], [], [State.SUCCEEDED])


class Rival:
    """Another transaction that wants what a handler has, and is too large to be a deadlock's victim."""

    def __init__(self, connection: pymysql.Connection[Any]) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._cursor.execute("START TRANSACTION")
        self._cursor.execute("INSERT INTO log VALUES (7)")  # InnoDB spares who has written into such a table
        self._cursor.executemany("INSERT INTO effect VALUES (%s)", [(n,) for n in range(100, 200)])
        self._thread = threading.Thread(target=self._wait)

    def _wait(self) -> None:
        with suppress(pymysql.MySQLError):
            self._cursor.execute("DELETE FROM effect WHERE n = 1")

    def meet(self, outside: Outside) -> None:
        """Wait for the handler's row: a transaction that then wants one of our rows completes the deadlock."""
        self._thread.start()
        waiting = (
            "SELECT 1 FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'DELETE FROM effect%'"
        )
        eventually(lambda: bool(outside.fetch(f"{waiting} AND time_ms > 100")))

    def end(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()
        self._connection.rollback()


@contextmanager
def rival(server: MariadbServer) -> Iterator[Rival]:
    connection = connect(server.port, database=server.database)
    met = Rival(connection)
    try:
        yield met
    finally:
        met.end()
        connection.close()


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("goes_on", [False, True], ids=["raises", "goes on"])
def test_writes_that_a_deadlock_leaves_are_made_once_and_the_outcome_is_unknown(
    fellow: Fellow, outside: Outside, server: MariadbServer, goes_on: bool
) -> None:
    ran: list[int] = []

    async def handler(permit: Permit, db: Writes) -> Answer:
        ran.append(1)
        await db.insert()
        await db.execute("INSERT INTO log VALUES (1)")
        other.meet(outside)
        try:
            await db.execute("DELETE FROM effect WHERE n = 100")
        except Exception:
            if not goes_on:
                raise
            await db.execute("SELECT 1 FROM log")  # its warnings take the place of the deadlock's
        return MADE

    with rival(server) as other, pytest.raises(EarlyCommit, match="table without transactions"):
        fellow.run(WHAT, handler)
    assert ran == [1]
    assert (outside.rows(), outside.rows("log"), outside.states) == ([], [1, 7], [State.UNKNOWN])
    with pytest.raises(OutcomeUnknownError, match="not-rolled-back"):
        fellow.run(WHAT, never)
    assert fellow.run(command("other", policy=ATOMIC), insert_and_answer).answer == MADE


@pytest.mark.usefixtures("log")
def test_a_deadlock_that_leaves_nothing_runs_the_handler_again(
    fellow: Fellow, outside: Outside, server: MariadbServer
) -> None:
    ran: list[int] = []

    async def handler(permit: Permit, db: Writes) -> Answer:
        ran.append(1)
        if len(ran) == 1:
            await db.insert()
            other.meet(outside)
            await db.execute("DELETE FROM effect WHERE n = 100")
        else:
            other.end()
        await db.insert(2)
        return MADE

    with rival(server) as other:
        assert fellow.run(WHAT, handler).answer == MADE
    assert (len(ran), outside.rows(), outside.states) == (2, [2], [State.SUCCEEDED])
