"""ATOMIC over HTTP where MariaDB ends the connection, its COMMIT is cut, or the handler rolled back by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import asyncmy.errors
import pymysql
import pytest

from semel.core.model import State
from semel.errors import HandlerRefused
from semel.policy import Policy
from tests.atomic.over_http import ask, check_retryable, check_rolled_back
from tests.mariadb.conftest import Fellow, Outside, Writes, writes_of
from tests.servers.relay import Relay


async def pays(db: Writes) -> None:
    await db.insert()


def retry_runs(fellow: Fellow, outside: Outside) -> None:
    """A retry makes the effect, and the next one replays it."""
    first, again = (ask(fellow, writes_of, pays) for _ in range(2))
    assert (first.status, first.replayed, again.status, again.replayed) == (201, False, 201, True)
    assert (outside.rows(), outside.states) == ([1], [State.SUCCEEDED])


def test_a_transaction_that_the_server_ended_may_be_retried(fellow: Fellow, outside: Outside) -> None:
    async def is_killed(db: Writes) -> None:
        await db.insert()
        [(id,)] = await db.execute("SELECT CONNECTION_ID()")
        outside.fetch(f"KILL CONNECTION {id}")

    answer = ask(fellow, writes_of, is_killed)
    check_retryable(answer)
    assert (outside.rows(), outside.states) == ([], [])
    retry_runs(fellow, outside)


@pytest.mark.parametrize("again", [1, 2])  # the second statement does not reach a server any more
def test_a_connection_that_the_server_ended_under_the_handler_may_be_retried(
    fellow: Fellow, outside: Outside, again: int
) -> None:
    async def goes_on(db: Writes) -> None:
        await db.insert()
        [(id,)] = await db.execute("SELECT CONNECTION_ID()")
        outside.fetch(f"KILL CONNECTION {id}")
        for _ in range(again - 1):
            with suppress(pymysql.MySQLError, asyncmy.errors.MySQLError):
                await db.insert(2)
        await db.insert(2)

    raised: list[BaseException] = []
    check_rolled_back(ask(fellow, writes_of, goes_on, raised=raised))
    assert len(raised) == 1  # the server's log has it
    assert (outside.rows(), outside.states) == ([], [])
    retry_runs(fellow, outside)


SIGNAL = "SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {}"
FOR_NOW = {
    "max_statement_time": "SET STATEMENT max_statement_time = 0.02 FOR SELECT SLEEP(20)",
    "lock_wait_timeout": SIGNAL.format(1205),
    "a deadlock": SIGNAL.format(1213),
    "a changed row": SIGNAL.format(1020),
}


@pytest.mark.parametrize("why", FOR_NOW)
def test_a_handler_stopped_by_a_temporary_server_error_may_be_retried(
    fellow: Fellow, outside: Outside, why: str
) -> None:
    async def is_stopped(db: Writes) -> None:
        await db.insert()
        await db.execute(FOR_NOW[why])

    raised: list[BaseException] = []
    check_rolled_back(ask(fellow, writes_of, is_stopped, raised=raised))
    [error] = raised  # the server's log has it
    assert type(error).__module__.split(".")[0] in ("pymysql", "asyncmy")
    assert (outside.rows(), outside.states) == ([], [])
    retry_runs(fellow, outside)


@pytest.mark.parametrize("kind", ["asyncmy"])  # a thread is not stopped
def test_a_handler_past_its_deadline_may_be_retried(fellow: Fellow, outside: Outside, kind: str) -> None:
    async def hangs(db: Writes) -> None:
        await db.insert()
        await asyncio.Event().wait()

    policy = Policy(effects="atomic", lease_seconds=1, deadline_seconds=1)
    raised: list[BaseException] = []
    check_rolled_back(ask(fellow, writes_of, hangs, policy=policy, raised=raised))
    assert [type(error) for error in raised] == [TimeoutError]
    assert (outside.rows(), outside.states) == ([], [])
    retry_runs(fellow, outside)


def test_a_commit_that_was_cut_may_be_retried(
    make_fellow: Callable[..., Fellow], outside: Outside, relay: Relay
) -> None:
    fellow = make_fellow(port=relay.port, patience_seconds=1.0)
    relay.lose("request", "COMMIT AND NO CHAIN")
    check_retryable(ask(fellow, writes_of, pays))
    assert outside.rows() == []
    retry_runs(fellow, outside)


def test_a_handlers_own_rollback_is_the_applications_failure(fellow: Fellow, outside: Outside) -> None:
    async def rolls_back(db: Writes) -> None:
        await db.insert()
        await db.execute("ROLLBACK")

    with pytest.raises(HandlerRefused, match="nothing of it remains"):
        ask(fellow, writes_of, rolls_back)
    assert (outside.rows(), outside.states) == ([], [])
    retry_runs(fellow, outside)
