"""Units on PostgreSQL while others ask: other processes, duplicates, waiters, and a pool without a free connection."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from semel import Answer, Permit
from semel.errors import (
    InProgressError,
    StoreUnavailable,
)
from tests.engine.shells import MADE, command
from tests.postgres.conftest import ATOMIC, WHAT, Fellow, Outside, Writes, never
from tests.postgres.unit_stories import MakeFellow, made_two

# --- others who ask meanwhile ---


def test_another_process_that_asks_meanwhile_runs_nothing(make_fellow: MakeFellow, outside: Outside) -> None:
    first, second = make_fellow(), make_fellow()
    asked: list[BaseException] = []

    def asks() -> None:
        try:
            second.run(WHAT, never, wait_seconds=0.05)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            asked.append(error)

    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        thread = threading.Thread(target=asks)
        thread.start()
        thread.join()
        return MADE

    assert first.run(WHAT, handler).answer == MADE
    assert [type(error) for error in asked] == [InProgressError]
    assert second.run(WHAT, never).replayed
    assert (outside.rows(), first.units, second.units, outside.open_transactions) == ([1], (1, 1), (1, 1), 0)


def test_a_waiter_gets_another_processs_answer_without_holding_a_connection(
    make_fellow: MakeFellow, outside: Outside
) -> None:
    first, second = make_fellow(), make_fellow()
    results: list[Any] = []
    transactions: list[int] = []

    def asks() -> None:
        results.append(second.run(WHAT, never, wait_seconds=10))

    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        thread.start()
        while second.engine.core.waiting == 0:
            threading.Event().wait(0.005)
        for _ in range(20):  # between its looks it is in no transaction
            transactions.append(outside.open_transactions)
            threading.Event().wait(0.005)
        return MADE

    thread = threading.Thread(target=asks)
    assert first.run(WHAT, handler).answer == MADE
    thread.join()
    assert [(result.replayed, result.answer) for result in results] == [(True, MADE)]
    assert min(transactions) == 1  # the handler's own
    assert outside.rows() == [1]


def test_duplicates_in_one_process_run_once(kind: str, make_fellow: MakeFellow, outside: Outside) -> None:
    fellow = make_fellow(connections_max=2)
    ran: list[int] = []

    async def handler(permit: Permit, db: Writes) -> Answer:
        ran.append(1)
        await db.insert()
        return MADE

    if fellow.runner is None:
        results: list[Any] = []
        threads = [
            threading.Thread(target=lambda: results.append(fellow.run(WHAT, handler, wait_seconds=20)))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:

        async def all_at_once() -> list[Any]:
            return await asyncio.gather(*[fellow.running(WHAT, handler, wait_seconds=20) for _ in range(8)])

        results = fellow.tell(all_at_once())
    assert sorted(result.replayed for result in results) == [False, *[True] * 7]
    assert (ran, outside.rows(), outside.open_transactions) == ([1], [1], 0)
    count, idle = fellow.units
    assert count == idle <= 2


def test_an_open_unit_does_not_delay_other_claims(conninfo: str, outside: Outside) -> None:
    """Twenty claims of one batch, one of them of the key that the unit holds: it is tried, not waited for."""
    holder = Fellow("psycopg", conninfo)
    batcher = Fellow("psycopg-async", conninfo, patience_seconds=3.0)
    commands = [command(f"key-{number}", policy=ATOMIC) for number in range(20)]
    verdicts: list[str] = []

    def batch() -> None:
        claims = [batcher.engine.core.attempt(what) for what in commands]
        found = batcher.performs("claim", lambda: batcher.engine.store.claim(claims))
        verdicts.extend(type(verdict).__name__ for verdict in found)

    async def handler(permit: Permit, db: Writes) -> Answer:
        thread = threading.Thread(target=batch)
        thread.start()
        thread.join()
        return MADE

    holder.run(commands[7], handler)
    assert verdicts == ["Proceed"] * 7 + ["InProgress"] + ["Proceed"] * 12
    holder.close()
    batcher.close()


def test_a_missing_free_connection_is_reported_in_time(make_fellow: MakeFellow, outside: Outside) -> None:
    fellow = make_fellow(connections_max=1, patience_seconds=1.0)
    other = command("other", policy=ATOMIC)
    met: list[BaseException] = []

    async def handler(permit: Permit, db: Writes) -> Answer:
        await db.insert()
        try:
            await fellow.running(other, never)
        except StoreUnavailable as error:
            met.append(error)
        return MADE

    assert fellow.run(WHAT, handler).answer == MADE
    assert [str(error) for error in met] == [str(error) for error in met if "connections_max" in str(error)] != []
    assert (outside.rows(), fellow.units) == ([1], (1, 1))
    assert fellow.run(other, lambda permit, db: made_two(db)).answer == MADE
