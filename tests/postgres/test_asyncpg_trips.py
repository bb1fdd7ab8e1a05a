"""Statements in front of one of asyncpg's own: what a refusal, a lost name and an operation under way do to them.

They rest on parts of asyncpg that it does not promise; these tests were written against asyncpg 0.32.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import asyncpg
import pytest

from semel import Answer, Permit
from semel.core.model import State
from semel.errors import EarlyCommit
from semel.stores.deadline import Deadline
from semel.stores.postgres.asyncpg import transaction
from semel.stores.postgres.asyncpg.pipeline import plain
from semel.stores.postgres.asyncpg.transaction import AsyncpgUnitConnection
from tests.engine.shells import MADE, command, until
from tests.postgres.conftest import ATOMIC, WHAT, Fellow, Outside, Writes
from tests.servers.relay import Relay

ECHO = "SELECT $1::integer, $2::text, $3::bytea, $4::smallint"
VALUES = (7, "sieben", b"\x00\xff", None)
KEEP = (
    "WITH said AS (INSERT INTO said VALUES ($1::integer, $2::text, $3::bytea) RETURNING a) SELECT FROM said WHERE a < 0"
)
REFUSED = "SELECT FROM (SELECT 1 / $1::integer AS a) AS b WHERE a IS NULL"


class Spy:
    """A transport that notes what is written to it, and passes nothing on but its end."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self._transport.abort()


Story = Callable[[AsyncpgUnitConnection], Awaitable[None]]


def play_story(conninfo: str, story: Story) -> None:
    """Play it on one connection."""

    async def play() -> None:
        connection = await asyncpg.connect(conninfo, connection_class=AsyncpgUnitConnection)
        try:
            await connection.execute("CREATE TEMPORARY TABLE said (a integer, b text, c bytea)")
            await story(connection)
        finally:
            connection.terminate()

    asyncio.run(play())


async def rows(connection: Any) -> list[Any]:
    return [tuple(row) for row in await connection.fetch("SELECT a, b, c FROM said")]


def test_values_round_trip_behind_a_begin(conninfo: str) -> None:
    async def story(connection: AsyncpgUnitConnection) -> None:
        for _ in range(2):
            [row] = await connection.ask(ECHO, VALUES, Deadline(5.0), "BEGIN")
            assert tuple(row) == VALUES
            assert connection.is_in_transaction()
            await connection.commit_behind(KEEP, (8, "ä", None), Deadline(5.0))
            assert not connection.is_in_transaction()
        assert await rows(connection) == [(8, "ä", None)] * 2

    play_story(conninfo, story)


def test_a_refusal_in_front_of_a_commit_commits_nothing(conninfo: str) -> None:
    async def story(connection: AsyncpgUnitConnection) -> None:
        await connection.execute("BEGIN")
        await connection.commit_behind(KEEP, (1, "one", b""), Deadline(5.0))
        await connection.execute("BEGIN")
        await connection.execute("INSERT INTO said VALUES (2)")
        with pytest.raises(asyncpg.DivisionByZeroError):
            await connection.commit_behind(REFUSED, (0,), Deadline(5.0))
        assert connection.is_in_transaction()
        await connection.execute("ROLLBACK")
        assert await rows(connection) == [(1, "one", b"")]

    play_story(conninfo, story)


def test_a_refusal_in_front_of_a_statement_performs_nothing_behind_it(conninfo: str) -> None:
    async def story(connection: AsyncpgUnitConnection) -> None:
        insert = "INSERT INTO said VALUES ($1::integer)"
        await connection.ask(insert, (1,), Deadline(5.0))
        with pytest.raises(asyncpg.UndefinedTableError):
            await connection.ask(insert, (2,), Deadline(5.0), "BEGIN", "LOCK TABLE there_is_none")
        await connection.execute("ROLLBACK")
        assert await rows(connection) == [(1, None, None)]

    play_story(conninfo, story)


def test_nothing_is_sent_during_another_operation(conninfo: str) -> None:
    async def story(connection: AsyncpgUnitConnection) -> None:
        await connection.execute("BEGIN")
        await connection.commit_behind(KEEP, (1, "one", b""), Deadline(5.0))
        await connection.execute("BEGIN")
        count = connection.fetch("SELECT count(*) FROM generate_series(1, 1000000)")
        other = asyncio.get_running_loop().create_task(count)
        await asyncio.wait((other,), timeout=0)
        spy = connection._transport = Spy(connection._transport)
        with pytest.raises(asyncpg.InterfaceError, match="another operation is in progress"):
            await connection.commit_behind(KEEP, (2, "two", b""), Deadline(5.0))
        assert (spy.written, connection.is_closed()) == ([], True)
        with pytest.raises(asyncpg.ConnectionDoesNotExistError):
            await other

    play_story(conninfo, story)


def test_a_value_that_cannot_be_written_down_behind_a_begin_ends_the_connection(conninfo: str) -> None:
    """It is unknown whether the BEGIN was sent by then."""

    async def story(connection: AsyncpgUnitConnection) -> None:
        await connection.ask(ECHO, VALUES, Deadline(5.0))
        with pytest.raises(asyncpg.DataError):
            await connection.ask(ECHO, ("seven", "", b"", None), Deadline(5.0), "BEGIN")
        assert connection.is_closed()

    play_story(conninfo, story)


class Inattentive:
    """A version of asyncpg that sends a statement without asking for the number of its values."""

    def __init__(self, protocol: Any) -> None:
        self.abort = protocol.abort

    async def bind_execute(self, **_: Any) -> list[Any]:
        return []


def test_a_statement_that_leaves_without_its_begin_ends_the_connection(conninfo: str) -> None:
    async def story(connection: AsyncpgUnitConnection) -> None:
        await connection.ask(ECHO, VALUES, Deadline(5.0))
        own, connection._protocol = connection._protocol, Inattentive(connection._protocol)
        try:
            with pytest.raises(asyncpg.InternalClientError, match="without those that belong before it"):
                await connection._send(connection.kept[ECHO], VALUES, b"begin", Deadline(5.0))
        finally:
            connection._protocol = own
        assert connection.is_closed()

    play_story(conninfo, story)


async def idle(permit: Permit, db: Writes) -> Answer:
    return MADE


async def book(permit: Permit, db: Writes) -> Answer:
    await db.insert()
    return MADE


def test_a_unit_whose_begin_was_not_performed_commits_no_rows(
    conninfo: str, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim commits by itself then, and the repeated one finds it."""
    fellow = Fellow("asyncpg", conninfo)
    try:
        fellow.run(command("warm", policy=ATOMIC), idle)
        monkeypatch.setattr(transaction, "plain", lambda *texts: plain("SELECT"))
        with pytest.raises(EarlyCommit):
            fellow.run(WHAT, book)
        assert (outside.rows(), outside.states) == ([], [int(State.SUCCEEDED), int(State.UNKNOWN)])
    finally:
        fellow.close()


def test_another_version_of_asyncpg_gets_a_round_trip_for_each_statement(
    conninfo: str, outside: Outside, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "IS_KNOWN", False)
    fellow = Fellow("asyncpg", relay.conninfo())
    try:
        with relay.counting() as trips:
            fellow.run(WHAT, book)
        ends = [text.strip(";") for trip in trips for text in trip if text.strip(";") in ("BEGIN", "COMMIT")]
        assert (ends, [len(trip) for trip in trips if "BEGIN" in trip or "COMMIT" in trip]) == (
            ["BEGIN", "COMMIT"],
            [1, 1],
        )
        assert fellow.run(WHAT, book).replayed
        assert (outside.rows(), outside.states) == ([1], [int(State.SUCCEEDED)])
    finally:
        fellow.close()


def test_a_statement_that_is_not_answered_in_time_ends_the_connection(conninfo: str) -> None:
    async def story(connection: AsyncpgUnitConnection) -> None:
        with pytest.raises(TimeoutError):
            await connection.ask("SELECT pg_sleep($1::integer)", (60,), Deadline(0.5))
        assert connection.is_closed()

    play_story(conninfo, story)


def test_prepared_names_that_were_dropped_are_forgotten(conninfo: str) -> None:
    async def story(connection: AsyncpgUnitConnection) -> None:
        await connection.ask(ECHO, VALUES, Deadline(5.0))
        await connection.execute("DEALLOCATE ALL")
        with pytest.raises(asyncpg.InvalidSQLStatementNameError):
            await connection.ask(ECHO, VALUES, Deadline(5.0))
        assert connection.kept == {}
        [row] = await connection.ask(ECHO, VALUES, Deadline(5.0))
        assert tuple(row) == VALUES

    play_story(conninfo, story)


def test_a_prepared_statement_outlives_asyncpgs_own_cache(conninfo: str) -> None:
    async def story(connection: AsyncpgUnitConnection) -> None:
        await connection.ask(ECHO, VALUES, Deadline(5.0))
        connection._drop_local_statement_cache()
        for _ in range(2):
            await connection.fetch("SELECT 1")  # it closes statements here that are no longer referenced
            [row] = await connection.ask(ECHO, VALUES, Deadline(5.0))
            assert tuple(row) == VALUES

    play_story(conninfo, story)


def test_a_claim_cancelled_in_flight_leaves_no_transaction_to_the_next(conninfo: str, outside: Outside) -> None:
    """asyncpg knows of no transaction before the answer to BEGIN; the server has one all the same."""

    async def story(fellow: Fellow) -> None:
        begin: Any = fellow.backend.unit_async
        lifo = begin.__self__.lifo

        async def make(permit: Permit, db: Writes) -> Answer:
            return MADE

        await fellow.running(command("first", policy=ATOMIC), make)
        for number in range(10):
            gone = asyncio.ensure_future(fellow.engine.claim(command(f"gone{number}", policy=ATOMIC)))
            await until(lambda: not lifo.idle)  # in the same moment it is sent
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
            assert not (await fellow.running(command(f"next{number}", policy=ATOMIC), make)).replayed

    with closing(Fellow("asyncpg", conninfo, connections_max=1)) as fellow:
        fellow.tell(story(fellow))
    assert outside.states == [State.SUCCEEDED] * 11
