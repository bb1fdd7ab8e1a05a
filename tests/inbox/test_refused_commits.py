"""A commit that the database refuses for what a message's handler wrote is the handler's failure, not an outage."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import asyncpg
import psycopg
import pytest

from semel.errors import HandlerRefused
from semel.inbox.brokers.delivery import Deliveries
from semel.inbox.run import Message
from semel.inbox.store import Receipt
from tests.bulk.fellows import Home, breaks_the_commit, execute, write
from tests.inbox.conftest import Consumer

Make = Callable[..., Consumer]


async def break_commit(message: Message) -> None:
    await write(message, 1)  # it has a connection, too
    await breaks_the_commit(message.connection, 1)


async def sound(message: Message) -> None:
    await write(message, 2)


def test_a_refused_commit_is_counted_as_a_failure_and_parks_in_the_end(make_consumer: Make, home: Home) -> None:
    worker = make_consumer(tries_max=3)
    for _ in range(2):
        with pytest.raises(HandlerRefused):
            worker.handle("m-1", break_commit)
        assert home.effects() == []
    assert worker.handle("m-1", break_commit) is Receipt.PARKED
    assert [(each.tries, each.reason.partition(":")[0]) for each in worker.list_parked()] == [(3, "HandlerRefused")]
    assert worker.handle("m-1", sound) is Receipt.PARKED
    assert worker.handle("m-2", sound) is Receipt.HANDLED
    assert home.effects() == [2]


def test_a_handler_that_is_corrected_handles_the_next_delivery(make_consumer: Make, home: Home) -> None:
    worker = make_consumer(tries_max=3)
    with pytest.raises(HandlerRefused):
        worker.handle("m-1", break_commit)
    assert worker.handle("m-1", sound) is Receipt.HANDLED
    assert home.effects() == [2]


def test_a_handler_that_takes_the_inboxs_row_away_has_done_nothing(make_consumer: Make, home: Home) -> None:
    """Nothing would tell the next delivery that the message was handled: what was written must not be committed."""

    async def cleans_up(message: Message) -> None:
        await write(message, 1)
        await execute(message.connection, "DELETE FROM semel_inbox")

    worker = make_consumer(tries_max=3)
    with pytest.raises(HandlerRefused):
        worker.handle("m-1", cleans_up)
    assert home.effects() == []
    assert worker.handle("m-1", sound) is Receipt.HANDLED
    assert worker.handle("m-1", sound) is Receipt.DUPLICATE
    assert home.effects() == [2]


@pytest.mark.parametrize("kind", ["sqlite-async", "psycopg-async", "asyncpg", "asyncmy"])
def test_a_refused_commit_is_not_reported_as_an_outage(make_consumer: Make) -> None:
    worker = make_consumer(tries_max=2)
    told: list[str] = []

    async def handler(message: Message, delivery: Any) -> None:
        await break_commit(message)

    deliveries = Deliveries(worker.inbox, handler, lambda _, error: told.append(type(error).__name__))
    assert worker.runner is not None
    assert (
        worker.runner.run(deliveries.take("m-1", None, 1)) is False
    )  # deliver again; None would mean an unavailable store
    assert worker.runner.run(deliveries.take("m-1", None, 2)) is True
    assert told == ["HandlerRefused"]


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async", "asyncpg"])
def test_a_swallowed_statement_error_is_a_failure_of_the_message(make_consumer: Make, home: Home) -> None:
    async def swallows(message: Message) -> None:
        await sound(message)
        with suppress(psycopg.Error, asyncpg.PostgresError):
            await sound(message)

    worker = make_consumer(tries_max=2)
    with pytest.raises(HandlerRefused):
        worker.handle("m-1", swallows)
    assert worker.handle("m-1", swallows) is Receipt.PARKED
    assert home.effects() == []
