"""What a command costs, as the server counts it: two round trips for a fresh one, one for a replay."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import Redis

from semel import AsyncEngine, Policy
from semel.core.model import Replay, Settled, State
from semel.policy import Command
from semel.stores.redis.store import RedisStore
from semel.testing.attempts import attempt, settlement
from tests.engine.shells import MADE, command
from tests.redis.conftest import Opens, backend, monitor_commands
from tests.servers.relay import REDIS, relay


@pytest.mark.parametrize("effects", ["external", "idempotent"])
def test_two_commands_fresh_and_one_replayed(own: int, open_engine: Opens, effects: str) -> None:
    shell = open_engine(own)
    policy = Policy.of(effects=effects)
    for _ in range(2):  # the scripts are loaded, the connection is open
        shell.run(command("warm", policy=policy), lambda permit: MADE)
    with monitor_commands(own) as fresh:
        assert not shell.run(command(policy=policy), lambda permit: MADE).replayed
    with monitor_commands(own) as again:
        assert shell.run(command(policy=policy), lambda permit: MADE).replayed
    assert _own(fresh) == ["EVALSHA", "EVALSHA"]
    assert _own(again) == ["EVALSHA"]


@pytest.mark.parametrize("together", [1, 3])
def test_the_scripts_of_a_command_stay_within_their_budget_of_calls(own: int, together: int) -> None:
    """The server's work for a claim, its settlement and a replay, alone and with others in one batch."""
    made = backend(own)
    made.driver.run(lambda: made.store.migrate("store", b"none"))
    claims = [attempt(key=f"{key}") for key in range(together)]
    heard_each: list[list[str]] = []

    def run_monitored(make: Any) -> list[Any]:
        with monitor_commands(own, in_scripts=True) as called:
            found: list[Any] = made.driver.run(make)
        heard_each.append(called)
        return found

    grants = [verdict.grant for verdict in run_monitored(lambda: made.store.claim(claims))]
    assert run_monitored(lambda: made.store.settle([settlement(grant) for grant in grants])) == [Settled()] * together
    assert {type(verdict) for verdict in run_monitored(lambda: made.store.claim(claims))} == {Replay}
    made.driver.close()
    assert heard_each == [
        ["TIME", "MGET", *["EXISTS", "ZCOUNT", "SET", "SET", "ZADD", "ZADD", "ZADD"] * together],
        ["TIME", "MGET", *["SET", "ZREM", "ZREM", "PEXPIRE"] * together],
        ["TIME", "MGET"],
    ]


def test_where_replicas_are_waited_for_a_claim_replays() -> None:
    """It waits for them, also where it writes nothing: what a look sees may be on the primary alone."""
    assert RedisStore().look_kept is not None
    assert RedisStore(wait_replicas=1).look_kept is None


def _own(said: list[str]) -> list[str]:
    return [command for command in said if command not in ("CLIENT", "SELECT", "HELLO", "ECHO")]


def test_callers_who_come_together_share_their_round_trips(own: int) -> None:
    """Forty commands at once: a batch of claims behind the first, and settlements likewise."""

    with relay(own, REDIS) as between:

        async def count_trips() -> int:
            engine = AsyncEngine(backend(between.port))
            await engine.migrate()
            async with engine:
                await _run(engine, "warm")
                before = len(between.trips)
                await asyncio.gather(*(_run(engine, key) for key in range(40)))
                return len(between.trips) - before

        assert asyncio.run(count_trips()) <= 6  # not eighty


async def _run(engine: AsyncEngine, key: object) -> Any:
    async def handler(permit: object) -> Any:
        return MADE

    what: Command = command(f"{key}")
    return await engine.run(what, handler)


def test_a_script_that_the_server_forgot_is_loaded_and_run_once(own: int, open_engine: Opens) -> None:
    shell = open_engine(own)
    with Redis(port=own) as client:
        client.script_flush()
    ran: list[int] = []
    result = shell.run(command(), lambda permit: ran.append(1) or MADE)  # type: ignore[func-returns-value]
    assert (ran, result.replayed) == ([1], False)
    with Redis(port=own) as client:
        client.script_flush()
    assert shell.run(command(), lambda permit: MADE).replayed
    row = shell.row(command())
    assert row is not None
    assert (row.state, row.attempt) == (State.SUCCEEDED, 1)
