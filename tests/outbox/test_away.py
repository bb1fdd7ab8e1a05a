"""An unavailable stream with more than a batch of events blocks no other stream, and order is kept. 6 s."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing

import pytest

from semel import AsyncEngine, Engine
from semel.outbox.event import Event
from semel.outbox.flow import AWAY_MAX, Away
from semel.outbox.run import own_event
from semel.outbox.sinks.base import Refused, Reply, Unreached
from semel.outbox.store import Events
from semel.outbox.worker import Relay
from tests.outbox.conftest import Broker, Place

BATCH = 50


class Routed:
    """Two brokers behind one sink, by topic; those of ``down`` do not answer."""

    name = "routed"

    def __init__(self) -> None:
        self.brokers = {"orders": Broker(), "Orders": Broker(), "mails": Broker()}
        self.down: set[str] = set()
        self.asked: list[str] = []
        self.arrived: list[Event] = []

    async def publish(self, events: Sequence[Event]) -> list[Reply]:
        self.asked += sorted({event.topic for event in events})
        return [await self._one(event) for event in events]

    async def _one(self, event: Event) -> Reply:
        if event.topic in self.down:
            return Unreached(f"{event.topic} has no leader")
        [reply] = await self.brokers[event.topic].publish([event])
        if reply is None:
            self.arrived.append(event)
        return reply

    async def close(self) -> None:
        pass


def write(place: Place, *named: tuple[str, str]) -> list[Event]:
    """Events in this order: topic, aggregate."""
    made = [own_event(None, topic, {"n": n}, None, ("order", name), None, "") for n, (topic, name) in enumerate(named)]
    with closing(Engine.connect(place.url)) as engine:
        engine.perform("write", lambda: Events(engine.store.dialect).write(made))  # type: ignore[attr-defined]
    return made


def each_in_order(place: Place, sink: Routed) -> bool:
    """Whether the events of each aggregate arrived in the order of their writing, over all topics."""
    written = {id: at for at, id in enumerate(place.ids)}
    orders: dict[str, list[int]] = {}
    for event in sink.arrived:
        orders.setdefault(event.aggregate_id, []).append(written[event.id])
    return all(order == sorted(order) for order in orders.values())


def test_a_stream_with_more_than_a_batch_waiting_is_skipped(place: Place) -> None:
    away = write(place, *(("orders", f"{n % 70}") for n in range(3 * BATCH)))
    mixed = write(
        place, *(("mails", "mixed"), ("orders", "mixed"), ("mails", "mixed")), ("mails", "own"), ("Orders", "b")
    )
    behind = write(place, ("mails", "5"))  # of an aggregate whose topic is unavailable
    refused = write(place, ("mails", "refused"), ("mails", "refused"))
    sink = Routed()
    sink.down.add("orders")
    sink.brokers["mails"].says[refused[0].id] = Refused("not today")

    async def story() -> None:
        async with AsyncEngine.connect(place.url) as engine:
            relay = Relay(engine, sink, batch=BATCH)
            assert await relay.run_once() == 3
            assert sink.brokers["mails"].ids == [mixed[0].id, mixed[3].id]
            assert sink.brokers["Orders"].ids == [mixed[4].id]  # another topic than the unavailable one
            assert relay.outage == "orders has no leader"
            assert sink.asked.count("orders") == 1
            assert place.waiting == [event.id for event in [*away, mixed[1], mixed[2], *behind, *refused]]
            sink.down.clear()
            assert await relay.run_once() == len(away) + 3
            assert relay.outage is None

    asyncio.run(story())
    # The refused one, once or, if its pause was over by then, twice; nothing of the unavailable topic.
    assert place.rows("SELECT count(*) FROM semel_event WHERE tries > 0") == [(1,)]
    assert place.waiting == [event.id for event in refused]
    assert each_in_order(place, sink)


@pytest.mark.parametrize("hold", [True, False])
def test_a_parked_event_holds_its_aggregate_back_if_configured(place: Place, hold: bool) -> None:
    write(place, *(("orders", f"{n}") for n in range(BATCH)))
    poison, next_one = write(place, ("mails", "poison"), ("mails", "poison"))
    sink = Routed()
    sink.down.add("orders")
    sink.brokers["mails"].says[poison.id] = Refused("never", for_good=True)

    async def story() -> None:
        async with AsyncEngine.connect(place.url) as engine:
            relay = Relay(engine, sink, batch=BATCH, hold=hold)
            assert (await relay.run_once(), relay.parked) == (1 - hold, 1)

    asyncio.run(story())
    assert sink.brokers["mails"].ids == ([] if hold else [next_one.id])


def test_a_running_relay_continues_with_other_streams_and_with_recovered_ones(quick_place: Place) -> None:
    away = write(quick_place, *(("orders", f"{n % 70}") for n in range(2 * BATCH)))
    sink = Routed()
    sink.down.add("orders")
    mails = sink.brokers["mails"]

    async def story() -> None:
        async with AsyncEngine.connect(quick_place.url) as engine, Relay(engine, sink, batch=BATCH) as relay:
            for n in range(3):
                await asyncio.to_thread(write, quick_place, ("mails", "own"))
                await mails.has(n + 1)
            assert relay.outage == "orders has no leader"
            sink.down.clear()
            await sink.brokers["orders"].has(len(away))
            await asyncio.to_thread(write, quick_place, ("mails", "own"))
            await mails.has(4)
            assert relay.outage is None

    asyncio.run(story())
    assert quick_place.waiting == []
    assert each_in_order(quick_place, sink)


def test_an_unavailable_topic_is_retried_with_growing_pauses() -> None:
    away = Away()
    assert away.note_outcome({"a", "b"}, (), 100.0, 1.0)
    assert (away.find_passed_over(100.05), away.find_passed_over(100.2), away.wait_seconds(100.2)) == (
        ["a", "b"],
        [],
        0.0,
    )
    assert away.note_outcome({"a"}, (), 101.0, 1.0)
    assert (away.find_passed_over(101.1), away.topics) == (["a"], ["a", "b"])
    assert not away.note_outcome({"b"}, {"b"}, 101.1, 1.0)  # a partition of it is unavailable
    assert (away.find_passed_over(101.1), away.topics) == ([], ["a"])
    away.keep({"b"})
    assert not away
    assert away.wait_seconds(102.0) == float("inf")


def test_a_bounded_number_of_topics_is_skipped() -> None:
    away = Away()
    assert away.note_outcome([f"t{n}" for n in range(AWAY_MAX)], (), 0.0, 1.0)
    assert not away.note_outcome(["one more"], (), 0.0, 1.0)
    assert away.note_outcome(["t7"], (), 0.0, 1.0)
