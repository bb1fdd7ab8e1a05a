"""What idle relays ask of a store: they take turns, and what is committed is published in time all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from semel import Answer, AsyncEngine, Command, Permit, Policy, Scope
from semel.errors import StoreUnavailable
from semel.outbox.event import Event
from semel.outbox.run import own_event
from semel.outbox.sinks.base import Reply
from semel.outbox.store import Events
from semel.outbox.worker import Relay
from semel.retention.worker import Reaper
from semel.telemetry import Counting
from semel.testing.clock import SettableClock
from semel.workers.loop import Loop
from tests.engine.shells import command, until
from tests.outbox.conftest import Broker, Place
from tests.worker.fleets import (
    FLEET,
    FLEET_STORES,
    SECOND_US,
    Fleet,
    OpenBackend,
    completer_of,
    empty_store,
    reconciling_of,
    seconds_until_unknown,
)


@pytest.fixture(params=FLEET_STORES)
def open_backend(request: pytest.FixtureRequest, tmp_path: Path) -> OpenBackend:
    return empty_store(request.param, tmp_path)


class ClockedRelay(Relay):
    """A relay whose time is the fleet's."""

    clock: SettableClock

    def _time(self) -> float:
        return self.clock() / SECOND_US


class Relaying(Loop):
    """A relay as a fleet drives it."""

    def __init__(self, relay: Relay) -> None:
        super().__init__("relaying", 1.0)
        self.relay = relay

    async def _look(self) -> None:
        self._rest = await self.relay._round(notified=False)

    async def _leave(self) -> None:
        await self.relay._leave()


class Relays:
    """A fleet of relays with one broker."""

    def __init__(self, open_backend: OpenBackend) -> None:
        self.broker = Broker()
        self.sink: Broker | None = None  # of those that begin from now on, where it is another one
        self.relays: list[Relay] = []
        self.fleet = Fleet(open_backend, self._make)

    def _make(self, engine: AsyncEngine) -> Loop:
        ClockedRelay.clock = self.fleet.clock
        self.relays.append(ClockedRelay(engine, self.sink or self.broker))
        return Relaying(self.relays[-1])

    async def write(self, *aggregates: str) -> None:
        """Commit an event of each, as another process does."""
        engine = self.fleet.engines[0]
        made = [own_event(None, "orders", {"n": 1}, None, ("order", each), None, "") for each in aggregates]
        await engine.perform("write", lambda: Events(engine.store.dialect).write(made))  # type: ignore[attr-defined]

    async def seconds_until(self, arrived: int, most: float = 30) -> float:
        """How long until the broker has so many."""

        async def is_there() -> bool:
            return len(self.broker.arrived) >= arrived

        return await self.fleet.run(most, is_there)


def test_20_idle_relays_send_less_than_one_statement_a_second_together(open_backend: OpenBackend) -> None:
    async def scenario() -> None:
        all = Relays(open_backend)
        fleet = all.fleet
        await fleet.begin(FLEET)
        await fleet.run(FLEET * 2)  # all are idle, and each has taken its first turns
        assert [relay._idle for relay in all.relays] == [True] * FLEET
        before = fleet.statements
        await fleet.run(60)
        assert 50 <= fleet.statements - before <= 55
        before = fleet.statements
        for relay in all.relays:  # what a minute of housekeeping adds
            relay._sweep_at = float("-inf")
            await relay._look_after_all()
        assert fleet.statements - before == FLEET
        assert sum(60 / (relay._sweep_at - relay._time()) for relay in all.relays) <= 1.2  # a sweep a minute together
        await fleet.close()

    asyncio.run(scenario())


ALL_BESIDE_A_RELAY = (Reaper, completer_of, reconciling_of)


def test_a_fleet_of_processes_with_all_kinds_of_workers_sends_less_than_one_statement_a_second(
    open_backend: OpenBackend,
) -> None:
    """The workers of a process look together: 55 turns a minute, and now and then a reconciler's sweep."""

    async def scenario() -> None:
        fleet = Relays(open_backend).fleet
        await fleet.begin(FLEET)
        for make_worker in ALL_BESIDE_A_RELAY:
            fleet.join(make_worker)
        await fleet.run(FLEET * 6)
        before = fleet.statements
        await fleet.run(120)
        assert 100 <= fleet.statements - before <= 120
        await fleet.close()

    asyncio.run(scenario())


def test_processes_with_other_kinds_of_workers_take_turns_of_their_own(open_backend: OpenBackend) -> None:
    """Ten with a reaper and a completer, two with a relay, a reaper and a reconciler: each finds what it can do."""

    async def scenario() -> None:
        all = Relays(open_backend)
        fleet = all.fleet
        await fleet.begin(2)
        for make_worker in (Reaper, reconciling_of):
            fleet.join(make_worker)
        fleet.make_worker = Reaper
        await fleet.begin(10)
        fleet.join(completer_of, first=2)
        await fleet.run(60)
        before = fleet.statements
        await fleet.run(60)
        assert 100 <= fleet.statements - before <= 116
        await all.write("7")
        assert await all.seconds_until(1) <= 1.1
        assert await seconds_until_unknown(fleet, 5) <= 6.0
        await fleet.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("killed", [(), (2,)], ids=["none", "one"])
def test_each_kind_finds_its_work_in_time_where_all_look_together(
    killed: tuple[int, ...], open_backend: OpenBackend
) -> None:
    async def scenario() -> None:
        all = Relays(open_backend)
        fleet = all.fleet
        await fleet.begin(6)
        for make_worker in ALL_BESIDE_A_RELAY:
            fleet.join(make_worker)
        await fleet.run(20)
        fleet.kill(*killed)
        late = 1.1 * (1 + len(killed))
        await all.write("7")
        assert await all.seconds_until(1) <= late
        await fleet.run(20)
        assert await seconds_until_unknown(fleet, 5) <= 6.0
        await fleet.run(20)
        dying = fleet.engines[0]
        policy = Policy(steps=True, resumable=True, lease_seconds=5)
        scope = Scope("demo", "alice", "pay")
        assert isinstance(await dying.claim(Command(scope, "k", bytes(32), "1.tests", policy, request=b"x")), Permit)
        dying.core.live.clear()  # nothing renews it

        async def is_begun() -> bool:
            return any(getattr(worker, "_running", None) for _, _, worker in fleet._wakes)

        assert await fleet.run(10, is_begun) <= 6.0
        await fleet.close()

    asyncio.run(scenario())


def test_a_reconciler_asks_within_its_interval_where_all_look_together(open_backend: OpenBackend) -> None:
    async def scenario() -> None:
        fleet = Relays(open_backend).fleet
        await fleet.begin(6)
        for make_worker in ALL_BESIDE_A_RELAY:
            fleet.join(make_worker)
        await fleet.run(20)
        await seconds_until_unknown(fleet, 1)

        async def is_asked() -> bool:
            return any(getattr(worker, "_goes_on", False) for _, _, worker in fleet._wakes)

        assert await fleet.run(20, is_asked) <= 6.1
        await fleet.close()

    asyncio.run(scenario())


def test_workers_of_one_process_that_come_and_go_leave_the_others_their_turns(open_backend: OpenBackend) -> None:
    async def scenario() -> None:
        all = Relays(open_backend)
        fleet = all.fleet
        await fleet.begin(3)
        fleet.join(Reaper)
        await fleet.run(15)
        for n in range(1, 6):  # the relays wake, work, and are idle again
            await all.write(str(n))
            assert await all.seconds_until(n) <= 1.1
            assert await seconds_until_unknown(fleet, 2 + n) <= 3.0 + n
        await fleet.run(15)
        before = fleet.statements
        await fleet.run(60)
        assert 50 <= fleet.statements - before <= 55
        await fleet.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("killed", [(), (1,)], ids=["none", "one"])
def test_a_commit_of_another_process_is_published_within_a_second(
    killed: tuple[int, ...], open_backend: OpenBackend
) -> None:
    """And within two where the relay whose turn it was has died."""

    async def scenario() -> None:
        all = Relays(open_backend)
        fleet = all.fleet
        await fleet.begin(FLEET // 2)
        await fleet.run(FLEET)
        fleet.kill(*killed)
        for n in range(1, 4):
            await all.write(str(n))
            assert await all.seconds_until(n) <= 1.1 * (1 + len(killed))
            await fleet.run(FLEET)  # they are idle again
            assert sum(not relay._idle for relay in all.relays) <= len(killed)
        await fleet.close()

    asyncio.run(scenario())


def test_idle_relays_join_a_busy_one_and_share_its_partitions(open_backend: OpenBackend) -> None:
    async def scenario() -> None:
        all = Relays(open_backend)
        fleet = all.fleet
        await fleet.begin(4)
        await fleet.run(12)
        real = all.broker.publish

        async def publish(events: Sequence[Event]) -> list[Reply]:
            fleet.clock.set(fleet.clock() + SECOND_US // 4)  # a slow broker, and as many come as go
            await all.write(*(event.aggregate_id for event in events))
            return await real(events)

        all.broker.publish = publish  # type: ignore[method-assign]
        await all.write(*map(str, range(16)))

        async def all_work() -> bool:
            return [relay._mask.bit_count() for relay in all.relays] == [8, 8, 8, 8]

        assert await fleet.run(60, all_work) <= 30
        all.broker.publish = real  # type: ignore[method-assign]
        await fleet.run(15)
        assert [relay._idle for relay in all.relays] == [True] * 4
        await fleet.close()

    asyncio.run(scenario())


def test_the_partitions_of_a_dead_relay_are_taken_over_within_a_second_of_its_lease(open_backend: OpenBackend) -> None:
    async def scenario() -> None:
        all = Relays(open_backend)
        fleet = all.fleet
        await fleet.begin(5)
        await fleet.run(12)
        dead = all.relays[-1]
        fleet.kill(5)
        await dead._attend(listens=False)  # it took all partitions, and died
        assert dead._mask.bit_count() == 32
        await all.write("7")
        assert 9.0 <= await all.seconds_until(1) <= 11.0
        await fleet.close()

    asyncio.run(scenario())


def test_a_parked_event_and_those_behind_it_keep_no_relay_awake(open_backend: OpenBackend) -> None:
    async def scenario() -> None:
        all = Relays(open_backend)
        fleet = all.fleet
        await fleet.begin(2)
        await all.write("7", "7", "8")
        [first, *_] = await fleet.engines[0].perform(
            "find",
            lambda: Events(fleet.engines[0].store.dialect).find(0, 9, parked=False),  # type: ignore[attr-defined]
        )
        await fleet.engines[0].perform(
            "park",
            lambda: Events(fleet.engines[0].store.dialect).park(first.event.id, "no"),  # type: ignore[attr-defined]
        )
        await fleet.run(10)
        assert [event.aggregate_id for event in all.broker.arrived] == ["8"]
        assert all.relays[0]._idle
        assert all.relays[1]._idle
        await fleet.close()

    asyncio.run(scenario())


def test_idle_relays_report_the_outbox_gauges(open_backend: OpenBackend) -> None:
    async def scenario() -> None:
        all = Relays(open_backend)
        fleet = all.fleet
        await fleet.begin(1)
        counting = fleet.engines[0].core.observer = Counting()
        await fleet.run(10)
        assert all.relays[0]._idle
        before = counting.counts["events_oldest_seconds", ()]
        await fleet.run(60)
        assert 4 <= counting.counts["events_oldest_seconds", ()] - before <= 6
        await fleet.close()

    asyncio.run(scenario())


def test_idle_relays_and_one_with_another_sink_see_each_other(
    open_backend: OpenBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """However long they have been idle: the new one when it starts, they at their turns, and each says so once."""

    async def scenario() -> None:
        all = Relays(open_backend)
        fleet = all.fleet
        await fleet.begin(3)
        await fleet.run(1300)
        assert [relay.rivals for relay in all.relays] == [()] * 3
        all.sink = Broker()
        all.sink.name = "redis://cache.example/0"
        await fleet.begin(1)
        await fleet.run(1)
        assert all.relays[-1].rivals == (all.broker.name,)
        await fleet.run(59)
        assert [relay.rivals for relay in all.relays[:3]] == [(all.sink.name,)] * 3
        assert all.relays[-1]._idle
        before = fleet.statements
        await fleet.run(1200)
        assert fleet.statements - before <= 20 * 56
        assert [relay.rivals for relay in all.relays[:3]] == [(all.sink.name,)] * 3
        fleet.kill(4)
        await fleet.run(900)
        assert [relay.rivals for relay in all.relays[:3]] == [()] * 3
        await fleet.close()

    asyncio.run(scenario())
    assert len([each for each in caplog.records if "another sink" in each.getMessage()]) == 4


def test_a_relay_that_leaves_does_not_hide_the_idle_relays(open_backend: OpenBackend) -> None:
    async def scenario() -> None:
        all = Relays(open_backend)
        fleet = all.fleet
        await fleet.begin(2)
        await fleet.run(150)
        await all.relays[0]._leave()
        newcomer = ClockedRelay(fleet.engines[0], Broker())
        newcomer._identity = "another"
        await newcomer._attend(listens=False)
        assert newcomer.rivals == (all.broker.name,)
        await newcomer._leave()
        await fleet.close()

    asyncio.run(scenario())


def test_a_commit_wakes_an_idle_relay_at_once(quick_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same process, and on PostgreSQL of any."""
    monkeypatch.setattr("semel.outbox.worker.LINGER_SECONDS", 0.01)
    broker = Broker()

    async def story() -> None:
        async with AsyncEngine.connect(quick_place.url) as engine:
            relay = Relay(engine, broker, poll_seconds=3600)  # no turn comes
            async with relay:
                for n in range(3):
                    await until(lambda: relay._idle)
                    await engine.run(command(f"{n}", policy=Policy(effects="atomic")), emitting)
                    await broker.has(n + 1)
                if quick_place.kind == "postgres":
                    await until(lambda: relay._idle)
                    await asyncio.to_thread(quick_place.fill, 1)
                    await broker.has(4)

    asyncio.run(story())
    assert quick_place.waiting == []


def test_an_idle_relay_listens_again_after_a_store_outage(quick_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.outbox.worker.LINGER_SECONDS", 0.0)

    async def fails(error: Exception) -> None:
        raise error

    async def story() -> None:
        async with AsyncEngine.connect(quick_place.url) as engine:
            relay = Relay(engine, Broker())
            while not relay._idle:
                await relay._round(notified=False)
            turns = relay._turns._perform
            for error in (StoreUnavailable("away"), RuntimeError("a defect")):
                relay._turn_at = 0.0  # its turn has come
                monkeypatch.setattr(relay._turns, "_perform", lambda *_, error=error: fails(error))
                rest = await relay._round(notified=False)
                assert relay._idle
                assert rest > 0.1
                assert relay._struck or relay._idle_seconds() > 0.1  # after a failure it rests despite notifications
            monkeypatch.setattr(relay._turns, "_perform", turns)
            await relay._round(notified=False)
            assert (relay._idle, relay._struck) == (True, False)
            await relay._leave()

    asyncio.run(story())


async def emitting(permit: Permit) -> Answer:
    permit.emit("a", {"n": 1})
    return Answer(200, (), b"")
