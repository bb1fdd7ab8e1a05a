"""ATOMIC over HTTP where the server ends the transaction, its COMMIT is cut, or the handler's writes are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import asyncpg
import psycopg
import pytest

from semel.core.model import State
from semel.errors import HandlerRefused
from semel.policy import Policy
from tests.atomic.over_http import ask, check_retryable, check_rolled_back
from tests.postgres.conftest import Fellow, Outside, Writes, writes_of
from tests.servers.relay import Relay
from tests.service.served import await_true

COMMIT = "COMMIT"


async def pays(db: Writes) -> None:
    await db.insert()


def retry_runs(fellow: Fellow, outside: Outside) -> None:
    """A retry makes the effect, and the next one replays it."""
    first, again = (ask(fellow, writes_of, pays) for _ in range(2))
    assert (first.status, first.replayed, again.status, again.replayed) == (201, False, 201, True)
    assert (outside.rows(), outside.states) == ([1], [State.SUCCEEDED])


async def _pid(db: Writes) -> int:
    [(pid,)] = await db.fetch("SELECT pg_backend_pid()")
    return int(pid)


@pytest.mark.parametrize("by", ["the administrator", "its idle limit"])
def test_a_transaction_that_the_server_ended_may_be_retried(fellow: Fellow, outside: Outside, by: str) -> None:
    async def idles(db: Writes) -> None:
        await db.insert()
        pid = await _pid(db)
        if by == "the administrator":
            outside.connection.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
            return
        await db.execute("SET LOCAL idle_in_transaction_session_timeout = '20ms'")
        gone = "SELECT FROM pg_stat_activity WHERE pid = %s"
        await_true(lambda: not outside.connection.execute(gone, (pid,)).fetchall(), "the server to end it")

    check_retryable(ask(fellow, writes_of, idles))
    assert (outside.rows(), outside.states) == ([], [])
    retry_runs(fellow, outside)


@pytest.mark.parametrize("again", [1, 2])  # the second statement does not reach a server any more
def test_a_connection_that_the_server_ended_under_the_handler_may_be_retried(
    fellow: Fellow, outside: Outside, again: int
) -> None:
    async def goes_on(db: Writes) -> None:
        await db.insert()
        outside.connection.execute("SELECT pg_terminate_backend(%s, 5000)", (await _pid(db),))
        for _ in range(again - 1):
            with suppress(psycopg.Error, asyncpg.PostgresError, asyncpg.InterfaceError):
                await db.insert(2)
        await db.insert(2)

    raised: list[BaseException] = []
    check_rolled_back(ask(fellow, writes_of, goes_on, raised=raised))
    assert len(raised) == 1  # the server's log has it
    assert (outside.rows(), outside.states) == ([], [])
    retry_runs(fellow, outside)


def test_a_statement_that_the_library_cannot_send_stays_the_applications_failure(
    fellow: Fellow, outside: Outside
) -> None:
    """Each retry would fail again."""

    async def asks_for_too_many(db: Writes) -> None:
        await db.insert()
        count, connection = 70_000, db.connection
        if isinstance(connection, asyncpg.Connection):
            await connection.execute(f"SELECT {','.join(f'${n + 1}::int' for n in range(count))}", *range(count))
            return
        done = connection.execute(f"SELECT {','.join(['%s'] * count)}", list(range(count)))
        if isinstance(connection, psycopg.AsyncConnection):
            await done

    with pytest.raises((psycopg.OperationalError, asyncpg.InterfaceError, asyncpg.PostgresError)):
        ask(fellow, writes_of, asks_for_too_many, raised=[])  # an answer would come before it
    assert (outside.rows(), outside.states) == ([], [])


SLOW = ("SET LOCAL statement_timeout = '20ms'", "SELECT pg_sleep(20)")
FOR_NOW = {"lock_timeout": "55P03", "a serialization failure": "40001", "a deadlock": "40P01"}


@pytest.mark.parametrize("why", ["statement_timeout", *FOR_NOW])
def test_a_handler_stopped_by_a_temporary_server_error_may_be_retried(
    fellow: Fellow, outside: Outside, why: str
) -> None:
    said = [f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{FOR_NOW[why]}'; END $$"] if why in FOR_NOW else SLOW

    async def is_stopped(db: Writes) -> None:
        await db.insert()
        for text in said:
            await db.execute(text)

    raised: list[BaseException] = []
    check_rolled_back(ask(fellow, writes_of, is_stopped, raised=raised))
    [error] = raised  # the server's log has it
    assert isinstance(error, psycopg.Error | asyncpg.PostgresError)
    assert (outside.rows(), outside.states, outside.open_transactions) == ([], [], 0)
    retry_runs(fellow, outside)


@pytest.mark.parametrize("kind", ["psycopg-async", "asyncpg"])  # a thread is not stopped
def test_a_handler_past_its_deadline_may_be_retried(fellow: Fellow, outside: Outside, kind: str) -> None:
    async def hangs(db: Writes) -> None:
        await db.insert()
        await db.execute("SELECT pg_sleep(20)")

    policy = Policy(effects="atomic", lease_seconds=1, deadline_seconds=1)
    raised: list[BaseException] = []
    check_rolled_back(ask(fellow, writes_of, hangs, policy=policy, raised=raised))
    assert [type(error) for error in raised] == [TimeoutError]
    assert (outside.rows(), outside.states, outside.open_transactions) == ([], [], 0)
    retry_runs(fellow, outside)


def test_a_handler_that_was_stopped_behind_its_own_commit_is_unknown(fellow: Fellow, outside: Outside) -> None:
    async def commits(db: Writes) -> None:
        await db.insert()
        await db.execute("COMMIT")
        raise TimeoutError

    raised: list[BaseException] = []
    for _ in range(2):
        answer = ask(fellow, writes_of, commits, raised=raised)
        assert (answer.status, answer.code) == (409, "IDEMPOTENCY_OUTCOME_UNKNOWN")
        assert answer.link() is not None
    assert (outside.rows(), outside.states) == ([1], [State.UNKNOWN])


def test_where_the_rollback_is_not_proven_it_may_have_happened(
    make_fellow: Callable[..., Fellow], outside: Outside, relay: Relay
) -> None:
    fellow = make_fellow(conninfo=relay.conninfo(), patience_seconds=1.0)

    async def is_cut_off(db: Writes) -> None:
        await db.insert()
        relay.hanging = True
        raise TimeoutError

    answer = ask(fellow, writes_of, is_cut_off, raised=[])
    check_retryable(answer)
    assert json.loads(answer.body)["mayHaveHappened"] is True
    relay.hanging = False
    await_true(lambda: not outside.open_transactions, "the server to see that the connection is gone")
    assert (outside.rows(), outside.states) == ([], [])
    retry_runs(fellow, outside)


def test_a_commit_that_was_cut_may_be_retried(
    make_fellow: Callable[..., Fellow], outside: Outside, relay: Relay
) -> None:
    fellow = make_fellow(conninfo=relay.conninfo(), patience_seconds=1.0)
    relay.lose("request", COMMIT)
    answer = ask(fellow, writes_of, pays)
    check_retryable(answer)
    assert json.loads(answer.body)["mayHaveHappened"] is True
    assert outside.rows() == []
    retry_runs(fellow, outside)


def test_a_deferred_constraint_is_the_applications_failure(fellow: Fellow, outside: Outside) -> None:
    outside.connection.execute("CREATE TABLE child (n integer REFERENCES effect (n) DEFERRABLE INITIALLY DEFERRED)")

    async def orphan(db: Writes) -> None:
        await db.execute("INSERT INTO child VALUES (99)")

    for _ in range(2):
        with pytest.raises(HandlerRefused, match="child_n_fkey"):
            ask(fellow, writes_of, orphan)
        assert (outside.rows("child"), outside.states) == ([], [])
    retry_runs(fellow, outside)


@pytest.mark.parametrize("how", ["a failed statement", "a rollback of its own"])
def test_a_handler_that_continues_after_a_rollback_fails_as_the_applications_error(
    fellow: Fellow, outside: Outside, how: str
) -> None:
    async def goes_on(db: Writes) -> None:
        await db.insert()
        if how == "a rollback of its own":
            await db.execute("ROLLBACK")
            return
        with pytest.raises((psycopg.errors.UniqueViolation, asyncpg.UniqueViolationError)):
            await db.insert()

    with pytest.raises(HandlerRefused, match="nothing of it remains"):
        ask(fellow, writes_of, goes_on)
    assert (outside.rows(), outside.states, outside.open_transactions) == ([], [], 0)
    retry_runs(fellow, outside)
