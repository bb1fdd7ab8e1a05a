"""A reply that is lost is not known yet: it is sent once, and a repetition is recognised by its nonce."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from redis import Redis

from semel import Answer
from semel.core.model import AlreadyMine, Proceed, Settled, State
from semel.errors import OutcomeUnknownError, StoreError, StoreTimeout, StoreUnavailable
from semel.stores.backend import Backend
from semel.testing.attempts import attempt, settlement
from semel.testing.bench import Bench, Mode, Subject, bench
from semel.testing.clock import SettableClock
from tests.engine.shells import MADE, command
from tests.redis.conftest import Opens, backend, monitor_commands
from tests.servers.relay import REDIS, Relay, relay


@pytest.fixture
def between(own: int) -> Iterator[Relay]:
    with relay(own, REDIS) as made:
        yield made


@pytest.fixture
def through(between: Relay, mode: Mode) -> Iterator[Bench]:
    """A store behind the relay; its server knows the scripts."""

    def subject(clock: SettableClock) -> Subject:
        made: Backend = backend(between.port, clock=clock)
        return Subject(made, lambda row: None, lambda: made)

    with bench(subject, mode) as ready:
        ready.settle(ready.grant(attempt("warm")))
        yield ready


def test_a_claim_whose_answer_is_lost_is_sent_once(own: int, through: Bench, between: Relay) -> None:
    between.lose("reply", "EVALSHA")
    with monitor_commands(own) as said, pytest.raises(StoreTimeout, match="not known yet"):
        through.grant()
    assert said.count("EVALSHA") == 1
    mine = through.claim(attempt())  # it stands, and it is ours: the nonce says so, not what the script wrote
    assert isinstance(mine, Proceed)
    assert mine.grant.attempt == 1
    assert through.row().nonce == attempt().nonce
    assert not isinstance(through.claim(attempt(nonce=2)), Proceed)


def test_a_settlement_whose_answer_is_lost_is_sent_once(own: int, through: Bench, between: Relay) -> None:
    grant = through.grant()
    between.lose("reply", "EVALSHA")
    with monitor_commands(own) as said, pytest.raises(StoreTimeout, match="not known yet"):
        through.settle(grant)
    assert said.count("EVALSHA") == 1
    assert through.settle(grant) == AlreadyMine()
    assert through.row().state == State.SUCCEEDED


def test_the_engine_reads_back_what_it_has_settled(between: Relay, open_engine: Opens) -> None:
    """The caller is given its answer although the store's was lost; the handler ran once."""
    shell = open_engine(between.port, confirm_seconds=5)
    ran: list[int] = []

    def handler(permit: object) -> Answer:
        ran.append(1)
        between.lose("reply", "EVALSHA")
        return MADE

    assert shell.run(command(), handler).answer == MADE
    assert shell.run(command(), handler).replayed
    assert ran == [1]


def test_a_lost_claim_runs_nothing_and_is_given_up(between: Relay, open_engine: Opens) -> None:
    """The key has no holder afterwards: the next attempt proceeds."""
    shell = open_engine(between.port)
    shell.run(command("warm"), lambda permit: MADE)
    between.lose("reply", "EVALSHA")
    ran: list[int] = []
    with pytest.raises(StoreTimeout):
        shell.run(command(), lambda permit: ran.append(1))  # type: ignore[arg-type,return-value]
    assert ran == []
    assert not shell.run(command(), lambda permit: MADE, wait_seconds=5).replayed


def test_a_connection_that_died_while_idle_is_not_used(through: Bench, between: Relay) -> None:
    """Nothing was sent on it, so that nothing is in doubt."""
    grant = through.grant()
    between.cut()
    assert through.settle(grant) == Settled()
    between.cut()
    assert through.row().state == State.SUCCEEDED


def test_a_server_that_hangs_times_out(between: Relay, open_engine: Opens) -> None:
    shell = open_engine(between.port, patience_seconds=0.6, confirm_seconds=0.1)  # enough to connect on a busy machine
    shell.run(command("warm"), lambda permit: MADE)
    between.hanging = True
    with pytest.raises(StoreTimeout, match="not known yet"):
        shell.run(command(), lambda permit: MADE)
    with pytest.raises(StoreError):  # a new connection gets no answer
        shell.run(command(), lambda permit: MADE)
    between.hanging = False
    between.cut()
    assert shell.run(command(), lambda permit: MADE, wait_seconds=5).answer == MADE


def test_an_outcome_that_cannot_be_confirmed_is_reported_as_unknown(between: Relay, open_engine: Opens) -> None:
    """The server is gone, and each attempt fails at once: no timeout that a busy machine could exceed first."""
    shell = open_engine(between.port, confirm_seconds=0.1)
    ran: list[int] = []
    server = between._server

    def handler(permit: object) -> Answer:
        ran.append(1)
        between._server = ("127.0.0.1", 1)
        between.cut()
        return MADE

    with pytest.raises((StoreTimeout, OutcomeUnknownError)):
        shell.run(command(), handler)
    assert ran == [1]
    between._server = server
    again = shell.run(command(), lambda permit: MADE, wait_seconds=5)
    assert (again.replayed, again.answer) == (True, MADE)  # it was repeated in the background


def test_one_bad_call_of_a_batch_does_not_fail_its_neighbours(own: int, between: Relay) -> None:
    """A record that is damaged in the place of another type is refused alone."""

    async def story() -> list[Any]:
        engine_backend = backend(between.port)
        from semel import AsyncEngine

        engine = AsyncEngine(engine_backend)
        await engine.migrate()
        async with engine:
            claims = [engine.core.attempt(command(f"{key}")) for key in range(5)]
            store: Any = engine_backend.store
            with Redis(port=own) as plain:
                plain.lpush(store.keys.record(claims[2].id), b"no record")
            asked = (engine.claim(command(f"{key}")) for key in range(5))
            met: list[Any] = await asyncio.gather(*asked, return_exceptions=True)
            for permit in met:
                if not isinstance(permit, Exception):
                    await engine.perform("settle", partial(store.settle, (settlement(permit.grant),)))
            return met

    met = asyncio.run(story())
    assert [isinstance(each, StoreUnavailable) for each in met] == [False, False, True, False, False]
    assert "WRONGTYPE" in str(met[2])
