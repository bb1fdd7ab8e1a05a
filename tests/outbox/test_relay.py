"""The relay's rules, with a broker that does what the test says: order, refusals, outages, partitions. 10 s."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Permit, Policy
from semel.errors import ConfigurationError, PolicyError, StoreUnavailable
from semel.outbox.event import Event
from semel.outbox.partitions import Partitions, registration, rivals_of
from semel.outbox.sinks.base import Refused, Reply, Unreached
from semel.outbox.store import Events
from semel.outbox.worker import Relay
from semel.stores.sql.tables import Copies
from semel.telemetry import Counting
from tests.engine.shells import command, until
from tests.outbox.conftest import SQLITE, Broker, Place, first_arrivals, in_order, make_place

ALL = 2**32 - 1


def run_story(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_each_event_is_published_once_in_order_and_marked(place: Place) -> None:
    made = place.fill(230, aggregates=7)
    broker = Broker()

    async def story() -> None:
        async with AsyncEngine.connect(place.url) as engine:
            relay = Relay(engine, broker, batch=50)
            assert await relay.run_once() == 230
            assert await relay.run_once() == 0

    run_story(story())
    assert sorted(broker.ids) == sorted(event.id for event in made)
    assert in_order(broker.arrived)
    assert max(broker.waves) == 7  # of each aggregate one at a time
    assert place.waiting == []
    assert broker.arrived[0] == made[0]


def test_a_refused_event_holds_its_aggregate_back_and_no_other(place: Place) -> None:
    made = place.fill(6, aggregates=2)
    broker = Broker()
    broker.says[made[0].id] = Refused("not today")

    async def story() -> None:
        async with AsyncEngine.connect(place.url) as engine:
            relay = Relay(engine, broker)
            assert await relay.run_once() == 3
            assert place.waiting == [made[0].id, made[2].id, made[4].id]
            broker.says.clear()
            assert await relay.run_once() == 0  # its time has not come
            place.change("UPDATE semel_event SET next_at = 0")
            assert await relay.run_once() == 3

    run_story(story())
    assert in_order(broker.arrived)


@pytest.mark.parametrize("options", [{"batch": 3}, {"batch_bytes": 1}])
def test_once_continues_after_a_batch_of_which_nothing_was_published(
    options: dict[str, Any], quick_place: Place
) -> None:
    first = quick_place.fill(3)
    [behind] = quick_place.fill(1, topic="others")
    quick_place.change("UPDATE semel_event SET aggregateid = 'x' WHERE topic = 'others'")
    broker = Broker()
    broker.says[first[0].id] = Refused("not today")

    async def story() -> None:
        async with AsyncEngine.connect(quick_place.url) as engine:
            assert await Relay(engine, broker, **options).run_once() == 1

    run_story(story())
    assert broker.ids == [behind.id]


@pytest.mark.parametrize("hold", [True, False])
def test_an_event_that_is_refused_too_often_is_parked_with_its_reason(hold: bool, place: Place) -> None:
    made = place.fill(4, aggregates=2)
    poison = made[0]
    broker = Broker()
    broker.says[poison.id] = Refused("no such topic")
    counting = Counting()

    async def story() -> None:
        async with AsyncEngine.connect(place.url, observer=counting) as engine:
            relay = Relay(engine, broker, tries_max=3, hold=hold)
            for _ in range(3):
                await relay.run_once()
                place.change("UPDATE semel_event SET next_at = 0")
            await relay.run_once()
            assert relay.parked == 1
            assert place.waiting == ([poison.id, made[2].id] if hold else [poison.id])
            events = Events(engine.store.dialect)  # type: ignore[attr-defined]
            [parked] = await engine.perform("find", lambda: events.find(0, 10, parked=True))
            assert (parked.event, parked.reason, parked.tries) == (poison, "no such topic", 3)
            depth = await relay.gauge()
            assert (depth.waiting, depth.parked) == (int(hold), 1)
            broker.says.clear()
            assert await engine.perform("retry", lambda: events.retry(poison.id))
            assert await relay.run_once() == 1 + hold

    run_story(story())
    assert place.waiting == []
    assert counting.total("events_parked") == 1
    assert counting.total("events_refused") == 3
    assert in_order(broker.arrived) == hold


def test_an_event_that_can_never_fit_is_parked_at_once_and_can_be_dropped(quick_place: Place) -> None:
    made = quick_place.fill(2)
    broker = Broker()
    broker.says[made[0].id] = Refused("too large", for_good=True)

    async def story() -> None:
        async with AsyncEngine.connect(quick_place.url) as engine:
            relay = Relay(engine, broker)
            assert await relay.run_once() == 0
            events = Events(engine.store.dialect)  # type: ignore[attr-defined]
            assert not await engine.perform("drop", lambda: events.drop(made[1].id))  # it waits, and is not parked
            assert await engine.perform("drop", lambda: events.drop(made[0].id))
            assert await relay.run_once() == 1

    run_story(story())
    assert quick_place.ids == [made[1].id]


def test_an_outage_uses_up_no_attempt_and_loses_nothing(place: Place) -> None:
    made = place.fill(9, aggregates=3)
    broker = Broker()
    for event in made:
        broker.says[event.id] = Unreached("nobody there")
    del broker.says[made[0].id]

    async def story() -> None:
        async with AsyncEngine.connect(place.url) as engine:
            relay = Relay(engine, broker)
            assert await relay.run_once() == 1
            assert relay.outage == "nobody there"
            assert broker.waves == [3, 1]  # of the second nothing arrived: the rest of the batch was spared
            broker.says.clear()
            assert await relay.run_once() == 8
            assert relay.outage is None

    run_story(story())
    assert place.rows("SELECT sum(tries) FROM semel_event") == [(0,)]
    assert in_order(broker.arrived)


def test_an_unavailable_stream_does_not_delay_others(quick_place: Place) -> None:
    """Nothing is parked of it, and the events of others arrive in the same turn, all of them."""
    made = quick_place.fill(12, aggregates=3)
    away = [event for event in made if event.aggregate_id == "1"]
    broker = Broker()
    for event in away:
        broker.says[event.id] = Unreached("its leader is away")

    async def story() -> None:
        async with AsyncEngine.connect(quick_place.url) as engine:
            relay = Relay(engine, broker, tries_max=1)
            assert await relay.run_once() == 8
            assert relay.outage == "its leader is away"
            assert quick_place.waiting == [event.id for event in away]
            broker.says.clear()
            assert await relay.run_once() == 4
            assert relay.outage is None

    run_story(story())
    assert quick_place.rows("SELECT sum(tries) FROM semel_event") == [(0,)]
    assert in_order(broker.arrived)


class Bomb(Broker):
    """Breaks its promise not to raise, for one event."""

    def __init__(self, poison: str) -> None:
        super().__init__()
        self.poison = poison

    async def publish(self, events: Sequence[Event]) -> list[Reply]:
        if any(event.id == self.poison for event in events):
            raise ZeroDivisionError("a bug")
        return await super().publish(events)


def test_a_sink_that_raises_stops_one_event_alone(quick_place: Place) -> None:
    made = quick_place.fill(5, aggregates=5)
    broker = Bomb(made[2].id)

    async def story() -> None:
        async with AsyncEngine.connect(quick_place.url) as engine:
            assert await Relay(engine, broker, tries_max=1).run_once() == 4

    run_story(story())
    assert quick_place.waiting == [made[2].id]
    assert quick_place.rows("SELECT reason FROM semel_event WHERE parked_at IS NOT NULL") == [
        ("ZeroDivisionError: a bug",)
    ]


class Killed(BaseException):
    """The relay's process is gone."""


def test_killed_between_publish_and_mark_it_publishes_again_under_the_same_ids(place: Place) -> None:
    made = place.fill(40, aggregates=4)
    broker = Broker()

    class Dying(Relay):
        async def _mark(self, arrived: Sequence[Any]) -> None:
            raise Killed

    async def story() -> None:
        async with AsyncEngine.connect(place.url) as engine:
            with pytest.raises(Killed):
                await Dying(engine, broker, batch=20).run_once()
            assert len(broker.ids) == 20
            assert len(place.waiting) == 40
            assert await Relay(engine, broker).run_once() == 40

    run_story(story())
    assert len(broker.ids) == 60
    assert set(broker.ids) == {event.id for event in made}
    assert in_order(broker.arrived)


def test_two_relays_that_ignore_each_other_keep_the_order_of_first_arrivals(quick_place: Place) -> None:
    """As if every lease had lapsed: both read everything, at any pace. Seeds are printed by pytest."""
    for seed in range(5):
        made = quick_place.fill(60, aggregates=3)
        generator = random.Random(seed)
        broker = Broker()

        class Pausing(Broker):
            async def publish(
                self, events: Sequence[Event], to: Broker = broker, generator: random.Random = generator
            ) -> list[Reply]:
                for _ in range(generator.randrange(30)):
                    await asyncio.sleep(0)
                return await to.publish(events)

        class Greedy(Relay):
            async def _attend(self, *, listens: bool) -> None:
                self._mask = ALL
                self._attended = asyncio.get_running_loop().time()

        async def story(greedy: type[Relay] = Greedy, pausing: type[Broker] = Pausing) -> None:
            async with AsyncEngine.connect(quick_place.url) as engine:
                relays = [greedy(engine, pausing(), batch=13) for _ in range(2)]
                await asyncio.gather(*(relay.run_once() for relay in relays))

        run_story(story())
        assert set(broker.ids) == {event.id for event in made}, seed
        assert in_order(broker.arrived), (seed, first_arrivals(broker.arrived))
        quick_place.change("DELETE FROM semel_event")


def test_partitions_are_shared_and_those_of_dead_relays_are_taken_over(place: Place) -> None:
    async def story() -> None:
        async with AsyncEngine.connect(place.url) as engine:
            partitions = Partitions(engine.store.dialect)  # type: ignore[attr-defined]

            async def attend(name: str, lease_us: int = 60_000_000) -> int:
                mask: int = await engine.perform("lanes", lambda: partitions.attend(name, lease_us, listens=False))
                return mask

            assert await attend("a") == ALL
            assert await attend("b") == 0  # they are all held still
            a = await attend("a")
            b = await attend("b")
            assert a.bit_count() == b.bit_count() == 16
            assert a & b == 0
            c = await attend("c")
            a, b, c = await attend("a"), await attend("b"), await attend("c")
            assert sorted(mask.bit_count() for mask in (a, b, c)) == [10, 11, 11]
            assert a | b | c == ALL
            await engine.perform("lanes", lambda: partitions.leave("b", 1))
            place.change("UPDATE semel_lane SET lease_until = 1 WHERE holder = 'c'")  # c is dead
            place.change("UPDATE semel_relay SET lease_until = 1 WHERE holder = 'c'")
            assert await attend("a") == ALL

    run_story(story())


def test_relays_with_different_sinks_report_each_other(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    first, again, second = Broker(), Broker(), Broker()
    second.name = "redis://cache.example/0"

    async def story() -> None:
        async with AsyncEngine.connect(place.url) as engine:
            async with Relay(engine, first):
                await until(lambda: bool(place.rows("SELECT holder FROM semel_relay WHERE lease_until > 0")))
                same = Relay(engine, again)
                await same.run_once()
                assert same.rivals == ()
                other = Relay(engine, second)
                await other.run_once()
                assert other.rivals == ("test",)
            alone = Relay(engine, second)
            await alone.run_once()
            assert alone.rivals == ()

    run_story(story())
    [record] = [each for each in caplog.records if "another sink" in each.getMessage()]
    assert "test" in record.getMessage()
    assert second.name in record.getMessage()


def test_an_idle_relay_with_another_sink_is_seen_for_ten_minutes(place: Place) -> None:
    async def story() -> None:
        async with AsyncEngine.connect(place.url) as engine:
            partitions = Partitions(engine.store.dialect)  # type: ignore[attr-defined]

            async def sinks() -> list[str]:
                found: dict[str, str] = await engine.perform("sinks", partitions.sinks)
                return rivals_of(found, "nats://b")

            for holder in ("vm:7:aa", "me"):
                await engine.perform("lanes", partial(partitions.attend, holder, 60_000_000, listens=False))
            assert await sinks() == []  # a version that does not name its sink, and itself
            for address in ("nats://a", "nats://b"):
                holder = registration(f"vm:8:{address}", address, address)
                await engine.perform("lanes", partial(partitions.attend, holder, 60_000_000, listens=False))
                await engine.perform("lanes", partial(partitions.retire, holder))
            assert await sinks() == ["nats://a"]
            assert await engine.perform("relays", Copies(engine.store).relay_us) > 0
            await engine.perform("lanes", lambda: partitions.leave("me", 60_000_000))
            assert await sinks() == ["nats://a"]  # an idle relay outlives the sweep of silent ones
            place.change("UPDATE semel_relay SET lease_until = lease_until + 601000000 WHERE lease_until < 0")
            assert await sinks() == []

    run_story(story())


def test_the_registration_fits_its_column_whatever_the_sink_is_called() -> None:
    long = registration("vm:1:abc", "kafka://" + "broker.example:9092," * 40, "x")
    assert len(long) == 191
    assert long != registration("vm:1:abc", "kafka://" + "broker.example:9092," * 40, "y")


def test_only_what_was_published_long_enough_ago_is_forgotten(place: Place) -> None:
    made = place.fill(5)
    broker = Broker()
    broker.says[made[4].id] = Refused("no")

    async def story() -> None:
        async with AsyncEngine.connect(place.url) as engine:
            relay = Relay(engine, broker, keep_seconds=3600)
            await relay.run_once()
            assert await relay.sweep() == 0
            place.change("UPDATE semel_event SET published_at = published_at - 3601000000 WHERE seq % 2 = 1")
            gone = await relay.sweep()
            assert gone == len(made) - len(place.ids) > 0

    run_story(story())
    assert made[4].id in place.ids


def test_a_batch_is_bounded_in_bytes_but_never_empty(quick_place: Place) -> None:
    quick_place.fill(6)

    async def story() -> None:
        async with AsyncEngine.connect(quick_place.url) as engine:
            events = Events(engine.store.dialect)  # type: ignore[attr-defined]
            for size, count in ((1, 1), (7, 1), (8, 2), (10**6, 6)):
                due = await engine.perform("due", partial(events.due, ALL, 100, size, hold=True))
                assert len(due) == count, size  # seven bytes each

    run_story(story())


def test_a_running_relay_wakes_at_a_commit_and_ends_at_stop(quick_place: Place) -> None:
    broker = Broker()

    async def story() -> None:
        async with AsyncEngine.connect(quick_place.url) as engine:
            relay = Relay(engine, broker, poll_seconds=3600)  # only a notification wakes it
            async with relay:
                await until(lambda: relay._attended > 0)
                for n in range(3):
                    await _emit(engine, quick_place, n)
                    await broker.has(n + 1)
            assert broker.closed == 1

    run_story(story())
    assert quick_place.waiting == []
    assert quick_place.rows("SELECT count(*) FROM semel_relay") == [(0,)]


async def _emit(engine: AsyncEngine, place: Place, n: int) -> None:
    async def handler(permit: Permit) -> Answer:
        permit.emit("a", {"n": n})
        return Answer(200, (), b"")

    await engine.run(command(f"{n}", policy=Policy(effects="atomic")), handler)


def test_a_failing_store_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = make_place(SQLITE, tmp_path)
    place.fill(3)
    broker = Broker()
    monkeypatch.setattr("semel.outbox.worker.STORE_REST_SECONDS", 0.01)

    async def story() -> None:
        async with AsyncEngine.connect(place.url) as engine:
            relay = Relay(engine, broker)
            real, failures = relay._events.due, 2

            def due(*args: Any, **options: Any) -> Any:
                nonlocal failures
                if failures:
                    failures -= 1
                    raise StoreUnavailable("away")
                return real(*args, **options)

            monkeypatch.setattr(relay._events, "due", due)
            async with relay:
                await broker.has(3)

    run_story(story())
    assert place.waiting == []


def test_impossible_options_are_refused_at_construction(tmp_path: Path) -> None:
    place = make_place(SQLITE, tmp_path)
    with pytest.raises(PolicyError, match="batch"):
        Relay(AsyncEngine.connect(place.url), Broker(), batch=0)
    with pytest.raises(ConfigurationError, match="SQL database"):
        Relay(AsyncEngine.connect("memory://"), Broker())
