"""A webhook endpoint that answers 410 Gone is disabled: it is sent nothing more until an operator enables it. 5 s."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from semel import AsyncEngine, Engine
from semel.cli.main import main
from semel.console import Console
from semel.outbox.receivers import Receiver, Receivers
from semel.outbox.sinks.webhook import WebhookSink
from semel.outbox.worker import Relay
from tests.engine.shells import until
from tests.outbox.conftest import Broker, Place
from tests.outbox.sink_stories import SECRET
from tests.outbox.test_receivers import engine_events
from tests.outbox.test_webhook import Receiver as HttpReceiver


class Semel:
    """The command line on one place."""

    def __init__(self, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
        self._place, self._capsys = place, capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        assert main(["--url", self._place.url, *arguments]) == code
        streams = self._capsys.readouterr()
        return " ".join((streams.out + streams.err).split())


@pytest.fixture
def semel(place: Place, capsys: pytest.CaptureFixture[str]) -> Semel:
    return Semel(place, capsys)


def hook(name: str, server: HttpReceiver) -> Receiver:
    return Receiver(name=name, url=server.url, secret=SECRET, private=True)


def ids_of(server: HttpReceiver) -> list[str]:
    return [headers["webhook-id"] for headers, _ in server.requests]


async def relay_once(place: Place, *receivers: Receiver) -> None:
    """Run one pass of a relay in a new process."""
    async with AsyncEngine.connect(place.url) as engine:
        sink = Receivers(engine, receivers, wait_seconds=30)
        await Relay(engine, sink).run_once()
        await sink.close()


def test_a_receiver_that_answers_410_gets_nothing_more_and_the_others_continue(place: Place, semel: Semel) -> None:
    made = place.fill(4, aggregates=2)

    async def story() -> None:
        async with HttpReceiver(410) as gone, HttpReceiver() as well:
            pair = hook("shop", gone), hook("bank", well)
            await relay_once(place, *pair)
            tried = len(gone.requests)
            assert 1 <= tried <= 2  # two aggregates were sent at once
            later = place.fill(3, aggregates=3)
            await relay_once(place, *pair)  # another process, which has learnt it from the outbox
            await relay_once(place, *pair)
            assert len(gone.requests) == tried
            assert sorted(ids_of(well)) == sorted(event.id for event in (*made, *later))
            gone.status = 204
            assert len(gone.requests) == tried
            await asyncio.to_thread(semel, "events", "enable", "--topic", "receiver.shop")
            await relay_once(place, *pair)
            arrived = ids_of(gone)[tried:]
            assert sorted(arrived) == sorted(event.id for event in (*made, *later))  # nothing is lost
            places = {event.id: place for place, event in enumerate((*made, *later))}
            for aggregate in {event.aggregate_id for event in later}:
                of_one = [event.id for event in (*made, *later) if event.aggregate_id == aggregate]
                assert sorted(of_one, key=arrived.index) == sorted(of_one, key=lambda id: places[id])

    asyncio.run(story())
    assert place.waiting == []


def test_an_enabled_endpoint_that_answers_410_again_is_disabled_by_one_try(place: Place, semel: Semel) -> None:
    place.fill(3, aggregates=1)

    async def story() -> None:
        async with HttpReceiver(410) as gone:
            await relay_once(place, hook("shop", gone))
            for tries in (2, 3):
                await asyncio.to_thread(semel, "events", "enable")
                await relay_once(place, hook("shop", gone))
                assert len(gone.requests) == tries

    asyncio.run(story())
    topics = json.loads(semel("events", "--by-topic", "--json"))["topics"]
    assert [(each["topic"], each["waiting"] + each["parked"]) for each in topics] == [("receiver.shop", 3)]


@pytest.mark.parametrize("name", ["doctor", "events", "console"])
def test_operators_see_which_receivers_are_disabled(place: Place, semel: Semel, name: str) -> None:
    place.fill(2, aggregates=2)

    async def story() -> None:
        async with HttpReceiver(410) as gone, HttpReceiver() as well:
            await relay_once(place, hook("shop", gone), hook("bank", well))

    asyncio.run(story())
    if name == "doctor":
        told = semel("doctor", code=1)
        assert "the receiver 'shop' is disabled, since it has answered 410 Gone" in told
        assert "semel events enable --topic receiver.shop" in told
        assert "'bank'" not in told
    elif name == "events":
        assert "shop (disabled)" in semel("events")
        [behind] = json.loads(semel("events", "--json"))["receivers"]
        assert (behind["receiver"], behind["disabled"]) == ("shop", True)
    else:
        with Engine.connect(place.url) as engine:
            page = TestClient(Console(engine, lambda request: "olga"), base_url="http://console.test").get("/events")
        assert ">shop (disabled)</th>" in page.text


def test_a_disabled_single_webhook_gets_no_topic(place: Place, semel: Semel) -> None:
    made = place.fill(30, aggregates=30)

    async def relay(server: HttpReceiver) -> Relay:
        async with AsyncEngine.connect(place.url) as engine:
            sink = WebhookSink(server.url, SECRET, private=True)
            made = Relay(engine, sink)
            await made.run_once()
            await sink.close()
            return made

    async def story() -> None:
        async with HttpReceiver(410) as gone:
            first = await relay(gone)
            tried = len(gone.requests)
            assert tried <= 20  # those that were under way when the first answer came
            assert first.parked == 30
            place.fill(1, topic="stock.low")
            await relay(gone)
            assert len(gone.requests) == tried
        told = await asyncio.to_thread(semel, "doctor", code=1)
        assert "the webhook's endpoint is disabled" in told
        assert "semel events enable" in told
        async with HttpReceiver() as new:  # another address
            await asyncio.to_thread(semel, "events", "enable")
            await relay(new)
            assert len(new.requests) == 31
            assert {event.id for event in made} <= set(ids_of(new))

    asyncio.run(story())


def test_only_what_a_410_has_parked_is_enabled(place: Place, semel: Semel) -> None:
    parked, _ = place.fill(2, aggregates=2)
    semel("events", "park", parked.id, "--reason", "the schema is wrong")
    assert "no endpoint is disabled" in semel("events", "enable", code=4)
    assert "no endpoint of the topic 'receiver.x' is disabled" in semel(
        *("events", "enable", "--topic", "receiver.x"), code=4
    )
    assert "takes no EVENT_ID" in semel("events", "enable", parked.id, code=2)

    async def story() -> None:
        async with HttpReceiver(410) as gone, AsyncEngine.connect(place.url) as engine:
            await Relay(engine, WebhookSink(gone.url, SECRET, private=True)).run_once()
            found: list[Any] = await engine.perform("find", lambda: engine_events(engine).find(0, 10, parked=True))
        assert len(found) == 2

    asyncio.run(story())
    assert "enabled: 1 will be retried" in semel("events", "enable")
    [left] = json.loads(semel("events", "--parked", "--json"))["events"]
    assert left["reason"] == "the schema is wrong"


def test_a_disabled_webhook_does_not_disable_other_sinks(quick_place: Place) -> None:
    quick_place.fill(1)

    async def story() -> None:
        async with HttpReceiver(410) as gone, AsyncEngine.connect(quick_place.url) as engine:
            await Relay(engine, WebhookSink(gone.url, SECRET, private=True)).run_once()
            _, later = quick_place.fill(2, aggregates=2, topic="later")  # the first waits behind the one that is parked
            broker = Broker()
            await Relay(engine, broker).run_once()
            assert broker.arrived == [later]

    asyncio.run(story())


def test_two_running_relays_stop_and_resume_with_the_endpoint(
    quick_place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    semel = Semel(quick_place, capsys)

    def count_parked() -> int:
        return len(quick_place.rows("SELECT id FROM semel_event WHERE parked_at IS NOT NULL"))

    async def story() -> None:
        async with (
            HttpReceiver(410) as gone,
            HttpReceiver() as well,
            AsyncEngine.connect(quick_place.url) as one,
            AsyncEngine.connect(quick_place.url) as two,
        ):
            pair = hook("shop", gone), hook("bank", well)
            async with Relay(one, Receivers(one, pair)), Relay(two, Receivers(two, pair)):
                [first] = quick_place.fill(1)
                await until(lambda: count_parked() == 1)
                tried = len(gone.requests)
                later = quick_place.fill(40, aggregates=40)
                await until(lambda: len(set(ids_of(well))) == 41)
                await until(lambda: count_parked() >= 40)  # the one behind the first of its aggregate waits
                assert len(gone.requests) == tried
                gone.status = 204
                await asyncio.to_thread(semel, "events", "enable", "--topic", "receiver.shop")
                await until(lambda: len(set(ids_of(gone)[tried:])) == 41)
                await until(lambda: quick_place.waiting == [])  # a stop leaves what is under way to the next relay
        assert {event.id for event in (first, *later)} == set(ids_of(gone))

    asyncio.run(story())
