"""An ATOMIC command whose grant replaces an old record: meanwhile its duplicates do not wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest

from semel import Answer, Permit
from semel.core.model import State
from semel.errors import InProgressError
from tests.engine.shells import MADE
from tests.postgres.conftest import WHAT, Fellow, Outside, Writes, never
from tests.servers.postgres import schema

MakeFellow = Callable[..., Fellow]
AT_ONCE_SECONDS = 2.5  # less than the patience of the fellows here
PATIENCE_SECONDS = 6.0


@pytest.fixture
def fellow(make_fellow: MakeFellow, outside: Outside) -> Fellow:
    """An engine, in whose store the command was given up before."""
    made = make_fellow(patience_seconds=PATIENCE_SECONDS)
    store = made.backend.store
    given_up = made.engine.core.attempt(WHAT)
    made.performs("claim", lambda: store.claim([given_up]))
    assert made.performs("abandon", lambda: store.abandon([(given_up.id, given_up.nonce)])) == [True]
    assert outside.states == [State.FAILED_NOT_REPLAYABLE]
    return made


def in_progress(fellow: Fellow) -> float:
    """How long it takes to be told."""
    began = time.monotonic()
    with pytest.raises(InProgressError):
        fellow.run(WHAT, never)
    return time.monotonic() - began


def test_a_duplicate_is_reported_at_once(fellow: Fellow, make_fellow: MakeFellow, outside: Outside) -> None:
    other = make_fellow(patience_seconds=PATIENCE_SECONDS)
    took: list[float] = []

    async def handler(permit: Permit, db: Writes) -> Answer:
        beside = threading.Thread(target=lambda: took.append(in_progress(other)))
        beside.start()
        await asyncio.to_thread(beside.join) if fellow.runner is not None else beside.join()
        await db.insert()
        return MADE

    assert fellow.run(WHAT, handler).answer == MADE
    assert took
    assert took[0] < AT_ONCE_SECONDS
    assert (outside.rows(), outside.states, outside.open_transactions) == ([1], [State.SUCCEEDED], 0)
    assert other.run(WHAT, never).replayed


@pytest.mark.parametrize("kind", ["psycopg"], indirect=True)
def test_a_duplicate_in_the_users_own_transaction_is_reported_at_once(fellow: Fellow, outside: Outside) -> None:
    """There nothing of Semel's ends a wait."""
    options = f"-c search_path={schema()} -c statement_timeout={round(PATIENCE_SECONDS * 1000)}"
    with (
        closing(psycopg.connect(outside.connection.info.dsn, options=options)) as first,
        closing(psycopg.connect(outside.connection.info.dsn, options=options)) as second,
    ):
        with fellow.engine.atomic(first, WHAT) as once:
            first.execute("INSERT INTO effect VALUES (1)")
            began = time.monotonic()
            with pytest.raises(InProgressError), fellow.engine.atomic(second, WHAT):
                raise AssertionError("this must not run")
            assert time.monotonic() - began < AT_ONCE_SECONDS
            once.answer = MADE
        first.commit()
        with fellow.engine.atomic(second, WHAT) as again:
            assert (again.replayed, again.answer) == (True, MADE)
    assert (outside.rows(), outside.states) == ([1], [State.SUCCEEDED])
