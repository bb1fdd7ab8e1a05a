"""A handler that ends before its own statement does: what Semel says of it waits for the end of the statement.

MariaDB does not notice that its client has gone while it is at a statement.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from semel import Answer, Permit, Policy
from semel.core.model import State
from semel.errors import EarlyCommit, OutcomeUnknownError, StoreTimeout
from semel.stores.mariadb import protocol, transaction
from tests.atomic.over_http import ask, check_rolled_back
from tests.engine.shells import MADE, command, until
from tests.mariadb.conftest import ATOMIC, WHAT, Fellow, Outside, Writes, insert_and_answer, never, writes_of
from tests.servers.relay import Relay

SHORT = Policy(effects="atomic", lease_seconds=1, deadline_seconds=1)
BRIEF = command(policy=SHORT)
PLAIN_TABLE = "CREATE OR REPLACE TABLE log (n integer) ENGINE = MyISAM"


def sleeping(outside: Outside) -> list[tuple[object, ...]]:
    """The sessions that are at a statement which sleeps."""
    return outside.fetch(
        "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE '%SLEEP(20)%' "
        "AND id <> CONNECTION_ID()"
    )


class OnLoops:
    """A thread is not stopped: only tasks leave a statement behind at their deadline."""

    @pytest.fixture
    def kind(self) -> str:
        return "asyncmy"


class TestPastTheDeadline(OnLoops):
    def test_the_statement_has_ended_when_the_client_hears_of_it(self, fellow: Fellow, outside: Outside) -> None:
        async def hangs(db: Writes) -> None:
            await db.insert()
            await db.execute("SELECT SLEEP(20)")

        raised: list[BaseException] = []
        check_rolled_back(ask(fellow, writes_of, hangs, policy=SHORT, raised=raised))
        assert [type(error) for error in raised] == [TimeoutError]
        assert (sleeping(outside), outside.rows(), outside.states) == ([], [], [])

    def test_a_procedure_commits_nothing_any_more(self, fellow: Fellow, outside: Outside) -> None:
        outside.fetch("CREATE PROCEDURE late() BEGIN DO SLEEP(20); INSERT INTO effect VALUES (2); COMMIT; END")

        async def calls(permit: Permit, db: Writes) -> Answer:
            await db.insert()
            await db.execute("CALL late()")
            return MADE

        with pytest.raises(TimeoutError):
            fellow.run(BRIEF, calls)
        assert (sleeping(outside), outside.rows(), outside.states) == ([], [], [])
        assert fellow.run(BRIEF, insert_and_answer).answer == MADE

    def test_what_may_remain_in_a_table_without_transactions_is_unknown(self, fellow: Fellow, outside: Outside) -> None:
        outside.fetch(PLAIN_TABLE)

        async def handler(permit: Permit, db: Writes) -> Answer:
            await db.execute("INSERT INTO log SELECT 1 UNION ALL SELECT 2 + SLEEP(20)")
            return MADE

        with pytest.raises(EarlyCommit, match="table without transactions"):
            fellow.run(BRIEF, handler)
        assert (sleeping(outside), outside.states) == ([], [State.UNKNOWN])
        with pytest.raises(OutcomeUnknownError, match="not-rolled-back"):
            fellow.run(BRIEF, never)

    def test_a_session_that_does_not_end_in_time_leaves_the_outcome_open(
        self, fellow: Fellow, outside: Outside, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stop = transaction._STOP.replace("KILL CONNECTION {id}", "DO {id}")  # as where a rollback takes minutes
        monkeypatch.setattr(transaction, "_STOP", stop.replace("INT DEFAULT {turns}", "INT DEFAULT LEAST({turns}, 2)"))

        async def handler(permit: Permit, db: Writes) -> Answer:
            await db.insert()
            await db.execute("SELECT SLEEP(20)")
            return MADE

        with pytest.raises(StoreTimeout, match="not known yet"):
            fellow.run(BRIEF, handler)
        for (id,) in sleeping(outside):
            outside.fetch(f"KILL CONNECTION {id}")

    def test_a_session_of_another_node_is_left_alone(
        self, fellow: Fellow, outside: Outside, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Behind one address of several servers: on the others its number belongs to another session."""

        async def handler(permit: Permit, db: Writes) -> Answer:
            await db.insert()
            monkeypatch.setattr(protocol, "GREETING", protocol.GREETING.replace("@@hostname", "'elsewhere'"))
            await db.execute("SELECT SLEEP(20)")
            return MADE

        with pytest.raises(StoreTimeout, match="not known yet"):
            fellow.run(BRIEF, handler)
        [(id,)] = sleeping(outside)
        outside.fetch(f"KILL CONNECTION {id}")

    def test_no_kill_is_sent_to_a_session_id_that_a_proxy_assigned(
        self, fellow: Fellow, outside: Outside, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Such as ProxySQL or MaxScale: on the server behind it, that number belongs to another session."""
        greeting = protocol.GREETING.replace("CONNECTION_ID()", "1 + CONNECTION_ID()")
        monkeypatch.setattr(protocol, "GREETING", greeting)

        async def handler(permit: Permit, db: Writes) -> Answer:
            await db.insert()
            await db.execute("SELECT SLEEP(20)")
            return MADE

        with pytest.raises(StoreTimeout, match="not known yet"):
            fellow.run(BRIEF, handler)
        [(id,)] = sleeping(outside)
        outside.fetch(f"KILL CONNECTION {id}")

    def test_a_statement_left_to_another_task_is_stopped(self, fellow: Fellow, outside: Outside) -> None:
        async def handler(permit: Permit, db: Writes) -> Answer:
            await db.insert()
            task = asyncio.create_task(db.execute("SELECT SLEEP(20)"))
            await until(lambda: bool(sleeping(outside)))
            left.append(task)
            return MADE

        left: list[asyncio.Task[object]] = []
        with pytest.raises(Exception, match="nothing of it remains"):
            fellow.run(WHAT, handler)
        assert (sleeping(outside), outside.rows(), outside.states) == ([], [], [])
        left[0].cancel()


def test_a_connection_that_the_server_ended_may_leave_writes_in_a_table_without_transactions(
    fellow: Fellow, outside: Outside
) -> None:
    outside.fetch(PLAIN_TABLE)

    async def is_killed(permit: Permit, db: Writes) -> Answer:
        await db.execute("INSERT INTO log VALUES (1)")
        [(id,)] = await db.execute("SELECT CONNECTION_ID()")
        outside.fetch(f"KILL CONNECTION {id}")
        await db.insert()
        return MADE

    with pytest.raises(EarlyCommit, match="table without transactions"):
        fellow.run(WHAT, is_killed)
    assert (outside.rows("log"), outside.states) == ([1], [State.UNKNOWN])
    with pytest.raises(OutcomeUnknownError, match="not-rolled-back"):
        fellow.run(WHAT, never)


def test_lost_connections_do_not_exhaust_the_pool(fellow: Fellow, outside: Outside) -> None:
    async def is_killed(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        [(id,)] = await db.execute("SELECT CONNECTION_ID()")
        outside.fetch(f"KILL CONNECTION {id}")
        await db.insert(2)
        return MADE

    for _ in range(10):  # more than there are connections for units
        with pytest.raises(Exception, match=r"(?i)lost|gone|closed|killed|read"):
            fellow.run(WHAT, is_killed)
    assert fellow.run(command("other", policy=replace(ATOMIC)), insert_and_answer).answer == MADE


def test_a_connection_that_the_network_ended_leaves_a_statement_behind(
    make_fellow: Callable[..., Fellow], relay: Relay, outside: Outside
) -> None:
    """It is still to be undone, or has committed by itself: nothing can be said of it while its session is there."""
    fellow = make_fellow(port=relay.port, patience_seconds=1.0)

    def cut() -> None:
        while not sleeping(outside):
            pass
        relay.cut()

    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        cutting = threading.Thread(target=cut)
        cutting.start()
        try:
            await db.execute("SELECT SLEEP(20)")
        finally:
            cutting.join()
        return MADE

    with pytest.raises(StoreTimeout, match="not known yet"):
        fellow.run(WHAT, handler)
    [(id,)] = sleeping(outside)
    outside.fetch(f"KILL CONNECTION {id}")
