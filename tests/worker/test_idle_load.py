"""What an idle fleet asks of a SQL store: its workers take turns, and a lapse is still visible in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from semel import AsyncEngine, Command, Engine, Permit, Policy, Scope
from semel.stores.mariadb.url import mariadb_backend
from semel.stores.postgres.url import postgres_backend
from semel.workers.loop import Loop
from semel.workers.rules import REAPER
from tests.servers.mariadb import mariadb
from tests.servers.postgres import postgres, schema
from tests.worker.fleets import (
    FLEET,
    FLEET_STORES,
    Fleet,
    OpenBackend,
    completer_of,
    empty_store,
    reconciling_of,
    seconds_until_unknown,
)
from verification.subjects.mariadb import mariadb_subject
from verification.subjects.postgres import empty_schema


@pytest.fixture(params=FLEET_STORES)
def open_backend(request: pytest.FixtureRequest, tmp_path: Path) -> OpenBackend:
    return empty_store(request.param, tmp_path)


def test_an_idle_fleet_of_20_sends_less_than_one_statement_a_second(open_backend: OpenBackend) -> None:
    """A tenth is left for the hourly purges, and for the turns that a process which wakes too late begins anew."""

    async def scenario() -> None:
        fleet = Fleet(open_backend)
        await fleet.begin(FLEET)
        await fleet.run(FLEET * 2)  # each has taken its first turns
        before = fleet.statements
        await fleet.run(60)
        assert 50 <= fleet.statements - before <= 55
        await fleet.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("killed", [(), (1,), (3, 4)], ids=["none", "one", "two"])
def test_a_lapse_is_unknown_within_its_lease_and_one_second(killed: tuple[int, ...], open_backend: OpenBackend) -> None:
    """Also where processes have died that had a turn, as the holder itself has."""

    async def scenario() -> None:
        fleet = Fleet(open_backend)
        await fleet.begin(FLEET // 2)
        await fleet.run(FLEET)
        fleet.kill(*killed)
        for lease_seconds in (1, 5, 30):
            assert await seconds_until_unknown(fleet, lease_seconds) <= lease_seconds + 1.0
        await fleet.close()

    asyncio.run(scenario())


def test_a_holder_that_dies_just_before_its_own_turn_delays_only_the_shortest_leases(open_backend: OpenBackend) -> None:
    """The worst moment: no worker has seen its record, and none looks for two turns."""

    async def scenario() -> None:
        fleet = Fleet(open_backend)
        await fleet.begin(FLEET // 2)
        await fleet.run(FLEET)
        for lease_seconds, late_most in ((1, 1.25), (1.2, 1.0), (5, 1.0), (30, 1.0)):
            looked = fleet.statements
            await fleet.run(FLEET, lambda looked=looked: is_after(fleet, looked))  # type: ignore[misc]
            holder = fleet.next_to_look
            fleet.kill(holder)
            assert await seconds_until_unknown(fleet, lease_seconds, holder) <= lease_seconds + late_most
            await fleet.run(FLEET)
        await fleet.close()

    asyncio.run(scenario())


async def is_after(fleet: Fleet, looked: int) -> bool:
    return fleet.statements > looked


def test_a_fleet_continues_after_an_outage_and_after_all_but_one_have_died(open_backend: OpenBackend) -> None:
    async def scenario() -> None:
        fleet = Fleet(open_backend)
        await fleet.begin(5)
        await fleet.run(10)
        with fleet.outage():
            await fleet.run(10)
        assert await seconds_until_unknown(fleet, 2) <= 3.0
        fleet.kill(1, 2, 3, 4)
        await fleet.run(6)  # the turns of the others are over
        assert await seconds_until_unknown(fleet, 3) <= 4.0
        before = fleet.statements
        await fleet.run(20)
        assert fleet.statements - before <= 21
        await fleet.begin(1)  # one that opens takes its place in the turns
        await fleet.run(5)
        before = fleet.statements
        await fleet.run(20)
        assert fleet.statements - before <= 21
        await fleet.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("make_worker", [completer_of, reconciling_of])
def test_idle_completers_and_reconcilers_take_turns(
    make_worker: Callable[[AsyncEngine], Loop], open_backend: OpenBackend
) -> None:
    async def scenario() -> None:
        fleet = Fleet(open_backend, make_worker)
        await fleet.begin(FLEET)
        await fleet.run(FLEET * 6)
        before = fleet.statements
        await fleet.run(60)
        assert 10 <= fleet.statements - before <= 55
        await fleet.close()

    asyncio.run(scenario())


def test_an_abandoned_execution_is_taken_over_within_a_second_of_its_lapse(open_backend: OpenBackend) -> None:
    async def scenario() -> None:
        fleet = Fleet(open_backend, completer_of)
        await fleet.begin(5)
        await fleet.run(10)
        fleet.kill(5)
        dying = fleet.engines[-1]
        policy = Policy(steps=True, resumable=True, lease_seconds=5)
        scope = Scope("demo", "alice", "pay")
        assert isinstance(await dying.claim(Command(scope, "k", bytes(32), "1.tests", policy, request=b"x")), Permit)
        dying.core.live.clear()  # nothing renews it

        async def is_begun() -> bool:
            return any(worker._running for _, _, worker in fleet._wakes)  # type: ignore[attr-defined]

        assert await fleet.run(10, is_begun) <= 6.0
        await fleet.close()

    asyncio.run(scenario())


def test_without_turns_each_process_checks_the_store() -> None:
    """A process of this release on a store that the former one migrated: what it lacks only costs statements."""
    empty_schema(postgres(), schema())

    async def scenario() -> None:
        fleet = Fleet(lambda clock: postgres_backend(postgres(), clock=clock, schema=schema()))
        await fleet.begin(2)
        with psycopg.connect(postgres(), autocommit=True, options=f"-c search_path={schema()}") as outside:
            outside.execute("DROP TABLE semel_turn")
        assert await seconds_until_unknown(fleet, 1) <= 2.0
        assert await fleet.engines[0].migrate() == ["turns"]
        assert await AsyncEngine(fleet.engines[0].backend).migrate() == []
        await fleet.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("library", ["psycopg", "pymysql"])
def test_turns_go_by_the_server_s_clock_in_threads_too(library: str) -> None:
    if library == "pymysql":
        _ = mariadb_subject(mariadb(), None)
        made = mariadb_backend(mariadb())
    else:
        empty_schema(postgres(), schema())
        made = postgres_backend(postgres(), schema=schema())
    store: Any = made.store
    with closing(Engine(made)) as engine:
        engine.migrate()
        first = engine.perform("turn", lambda: store.turn(REAPER, None, 60_000_000, True))
        again = engine.perform("turn", lambda: store.turn(REAPER, first.next, 60_000_000, True))
        other = engine.perform("turn", lambda: store.turn(REAPER, None, 60_000_000, True))
    assert abs(first.now / 1_000_000 - time.time()) < 60
    assert first.next == first.now + 60_000_000
    assert (again.next, again.earliest) == (first.next, None)  # it looked out of turn
    assert other.next == first.next + 60_000_000
