"""What is lost on the wire, at each step of an ATOMIC unit: one effect or none, told truly, and nothing stuck."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import pytest

from semel import Answer, Permit
from semel.core.model import State
from semel.errors import SemelError, StoreError, StoreTimeout
from tests.engine.shells import MADE, command
from tests.postgres.conftest import ATOMIC, WHAT, Fellow, Handler, Kind, Outside, Writes, insert_and_answer
from tests.servers.relay import Loss, Relay

T = TypeVar("T")
MakeFellow = Callable[..., Fellow]
PATIENCE_SECONDS = 1.0
RETRIES_MAX = 20
CLAIM, SETTLE, COMMIT = "(SELECT FROM semel_record WHERE id =", "1 / count(*)", "COMMIT"


async def other(permit: Permit, db: Writes) -> Answer:
    return MADE


@pytest.fixture(params=["new", "idle"])
def fellow(request: pytest.FixtureRequest, make_fellow: MakeFellow, relay: Relay) -> Fellow:
    """An engine behind the relay, which has used its connections before, or not yet."""
    made = make_fellow(conninfo=relay.conninfo(), patience_seconds=PATIENCE_SECONDS)
    if request.param == "idle":
        for _ in range(2):
            until_done(lambda: made.run(command("before", policy=ATOMIC), other))
    else:
        until_done(lambda: made.tell(_open_engine(made)))
    return made


def until_done(act: Callable[[], T]) -> T | None:
    """As a client does: a busy machine may take longer than the fellow's patience."""
    for _ in range(RETRIES_MAX):
        with suppress(StoreError):
            return act()
    return None


async def _open_engine(fellow: Fellow) -> None:
    opening = fellow.engine.open()
    if opening is not None:
        await opening


def ends_well(fellow: Fellow, outside: Outside, relay: Relay) -> None:
    """A retry gets the one answer, whether it runs or replays; nothing is left behind."""
    result = until_done(lambda: fellow.run(WHAT, insert_and_answer, wait_seconds=10))
    assert result is not None
    assert result.answer == MADE
    assert outside.rows() == [1]
    assert set(outside.states) == {State.SUCCEEDED}
    assert outside.open_transactions == 0
    count, idle = fellow.units
    assert count == idle


def run_or_error(fellow: Fellow, handler: Handler) -> Answer | SemelError:
    try:
        return fellow.run(WHAT, handler).answer
    except SemelError as error:
        return error


@pytest.mark.parametrize("loss", ["reply", "both"])
def test_a_commit_whose_answer_is_lost_is_read_back(fellow: Fellow, outside: Outside, relay: Relay, loss: Loss) -> None:
    relay.lose(loss, COMMIT)
    result = fellow.run(WHAT, insert_and_answer)
    assert (result.answer, result.replayed) == (MADE, False)
    assert outside.rows() == [1]
    ends_well(fellow, outside, relay)


def test_a_commit_that_never_arrives_is_not_known_yet(fellow: Fellow, outside: Outside, relay: Relay) -> None:
    relay.lose("request", COMMIT)
    with pytest.raises(StoreTimeout, match="not known yet"):
        fellow.run(WHAT, insert_and_answer)
    ends_well(fellow, outside, relay)


@pytest.mark.parametrize("loss", ["request", "reply", "both"])
@pytest.mark.parametrize("word", [CLAIM, SETTLE])
def test_a_connection_lost_before_the_commit_leaves_all_or_nothing(
    fellow: Fellow, kind: Kind, outside: Outside, relay: Relay, word: str, loss: Loss
) -> None:
    ran: list[int] = []

    async def handler(permit: Permit, db: Writes) -> Answer:
        ran.append(1)
        return await insert_and_answer(permit, db)

    relay.lose(loss, word)
    begun = time.monotonic()
    told = run_or_error(fellow, handler)
    assert isinstance(told, StoreError) or (told, outside.rows()) == (MADE, [1])
    assert time.monotonic() - begun < 10 * PATIENCE_SECONDS
    assert len(ran) <= 1
    ends_well(fellow, outside, relay)


def test_semels_statement_after_the_handler_times_out(fellow: Fellow, outside: Outside, relay: Relay) -> None:
    """The handler may take its time; what Semel asks on its connection then may not."""
    what = replace(WHAT, business_ref="invoice-1")

    async def handler(permit: Permit, db: Writes) -> Answer:
        relay.lose("both", "semel_operation")
        return await insert_and_answer(permit, db)

    began = time.monotonic()
    with pytest.raises(StoreError):
        fellow.run(what, handler)
    assert time.monotonic() - began < 10 * PATIENCE_SECONDS
    relay.cut()
    assert fellow.run(what, insert_and_answer, wait_seconds=10).answer == MADE
    assert outside.rows() == [1]


@pytest.mark.parametrize("step", ["UPDATE semel_record AS r SET", "(SELECT FROM semel_record WHERE id ="])
def test_the_separate_transaction_of_a_refusal_times_out(
    fellow: Fellow, outside: Outside, relay: Relay, step: str
) -> None:
    """It is claimed and settled in one transaction, of which the engine waits for no ROLLBACK either."""
    refused = Answer(409, (), b"out of stock")

    async def handler(permit: Permit, db: Writes) -> Answer:
        relay.lose("both", step)
        return refused

    began = time.monotonic()
    with pytest.raises(StoreError):
        fellow.run(WHAT, handler)
    assert time.monotonic() - began < 10 * PATIENCE_SECONDS
    relay.cut()

    async def again(permit: Permit, db: Writes) -> Answer:
        return refused

    assert fellow.run(WHAT, again, wait_seconds=10).answer == refused
