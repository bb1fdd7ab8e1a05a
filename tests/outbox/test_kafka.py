"""The sink and the consumer of Kafka's protocol on real sockets, against librdkafka's own mock cluster. 4 s."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer

from semel.outbox.event import Event
from semel.outbox.sinks.base import Unreached
from tests.outbox.sink_stories import assert_refused, event, run_story, sink_of
from tests.servers import kafka
from tests.servers.running import free_port


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[kafka.Cluster]:
    monkeypatch.setattr("semel.outbox.sinks.kafka.ACK_SECONDS", 1.0)
    monkeypatch.setattr("semel.outbox.sinks.kafka.REQUEST_MS", 1000)
    with kafka.cluster("orders") as made:
        yield made


async def records(cluster: kafka.Cluster, count: int) -> list[Any]:
    """Return what a consumer finds in the topic, from its beginning."""
    client = AIOKafkaConsumer("orders", bootstrap_servers=cluster.servers, auto_offset_reset="earliest")
    await client.start()
    try:
        return [await asyncio.wait_for(client.getone(), 10) for _ in range(count)]
    finally:
        await client.stop()


def number_events(count: int, aggregates: int = 3) -> list[Event]:
    return [event("orders", {"n": n}, id=str(n % aggregates)) for n in range(count)]


@pytest.mark.parametrize("idempotence", ["yes", "no"])
def test_kafka_has_the_events_of_an_aggregate_in_one_partition(idempotence: str, cluster: kafka.Cluster) -> None:
    async def story() -> None:
        sent = [event("orders", headers={"trace": "1"}, id="7é"), *number_events(6)]
        async with sink_of(f"kafka://{cluster.servers}?idempotence={idempotence}") as sink:
            for each in sent:
                assert await sink.publish([each]) == [None]
        found = await records(cluster, len(sent))
        assert {record.value for record in found} == {each.payload for each in sent}
        first = next(record for record in found if record.value == sent[0].payload)
        headers = dict(first.headers)
        assert (first.key, headers["semel-id"], headers["trace"]) == ("7é".encode(), sent[0].id.encode(), b"1")
        partitions: dict[bytes, set[int]] = {}
        for record in found:
            partitions.setdefault(record.key, set()).add(record.partition)
        assert all(len(each) == 1 for each in partitions.values())

    run_story(story)


@pytest.mark.parametrize(
    ("error", "says", "for_good"),
    [(29, "TopicAuthorizationFailed", False), (10, "MessageSizeTooLarge", True), (44, "PolicyViolation", False)],
)
def test_kafka_reports_which_event_it_refuses(error: int, says: str, for_good: bool, cluster: kafka.Cluster) -> None:
    async def story() -> None:
        async with sink_of(f"kafka://{cluster.servers}") as sink:
            cluster.fail(kafka.PRODUCE, error)
            [reply] = await sink.publish([event("orders")])
            assert_refused(reply, says, for_good=for_good)
            assert await sink.publish([event("orders")]) == [None]

    run_story(story)


def test_kafka_without_a_topic_refuses_only_its_events(cluster: kafka.Cluster) -> None:
    async def story() -> None:
        cluster.say("missing", kafka.UNKNOWN_TOPIC)
        cluster.say("young", kafka.LEADER_NOT_AVAILABLE)
        async with sink_of(f"kafka://{cluster.servers}") as sink:
            replies = await sink.publish([event("missing"), event("orders"), event("young")])
            assert_refused(replies[0], "there is no topic 'missing'")
            assert replies[1] is None
            assert isinstance(replies[2], Unreached)
            cluster.say("missing", 0)
            cluster.say("young", 0)
            assert await sink.publish([event("missing"), event("young")]) == [None, None]

    run_story(story)


@pytest.mark.parametrize("error", [45, 47, 56])  # what it knows of the producer, and its disk
def test_an_error_of_kafka_itself_uses_up_no_attempt(error: int, cluster: kafka.Cluster) -> None:
    async def story() -> None:
        async with sink_of(f"kafka://{cluster.servers}") as sink:
            cluster.fail(kafka.PRODUCE, *[error] * 50)
            [reply] = await sink.publish([event("orders")])
            assert isinstance(reply, Unreached)

    run_story(story)


def test_kafka_gets_each_event_after_a_new_leader_or_missing_replicas(
    cluster: kafka.Cluster,
) -> None:
    async def story() -> None:
        async with sink_of(f"kafka://{cluster.servers}") as sink:
            cluster.fail(kafka.PRODUCE, kafka.NOT_LEADER, kafka.NOT_ENOUGH_REPLICAS)
            assert await sink.publish(number_events(1)) == [None]
            for partition in (0, 1):
                cluster.lead("orders", partition, 2)
            assert await sink.publish(number_events(3)) == [None] * 3

    run_story(story)


def test_events_reach_kafka_after_an_outage(cluster: kafka.Cluster) -> None:
    """Also where it goes before it was asked whether a topic exists: that is no answer."""

    async def story() -> None:
        async with sink_of(f"kafka://{cluster.servers}") as sink:
            assert await sink.publish([event("orders")]) == [None]
            cluster.down()
            for topic in ("orders", "unheard", "orders"):
                [reply] = await sink.publish([event(topic)])
                assert isinstance(reply, Unreached), topic
            cluster.up()
            assert await sink.publish([event("orders"), event("unheard")]) == [None, None]
        async with sink_of(f"kafka://127.0.0.1:{free_port()}") as sink:
            [reply] = await sink.publish([event("a")])
            assert isinstance(reply, Unreached)

    run_story(story)
