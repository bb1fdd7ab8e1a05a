"""Consumers whose broker is idle, restarts, forgets or gives up: they neither end nor lose a message. 10 s."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError
from nats.js.api import ConsumerConfig
from redis import Redis as SyncRedis
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from semel import AsyncEngine, AsyncInbox
from semel.errors import ConfigurationError, StoreUnavailable
from semel.inbox.brokers.kafka import KafkaConsumer
from semel.inbox.brokers.nats import JetStreamConsumer
from semel.inbox.brokers.redis_streams import RedisStreamConsumer
from semel.inbox.run import Message
from tests.bulk.fellows import Home, sqlite_home
from tests.engine.shells import until
from tests.servers import kafka as kafka_cluster
from tests.servers import nats as nats_server
from tests.servers import redis as redis_server
from tests.servers.running import Running, stop

Story = Callable[[AsyncInbox], Coroutine[Any, Any, None]]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return sqlite_home(str(tmp_path / "inbox.db"))


def run(home: Home, story: Story, **options: Any) -> None:
    """A story with an inbox, which may not take longer than a minute."""

    async def main() -> None:
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            await story(AsyncInbox(engine, consumer="billing", **options))

    asyncio.run(asyncio.wait_for(main(), 60))


async def writes(message: Message, delivery: Any) -> None:
    message.connection.execute("INSERT INTO effect VALUES (?)", (int(message.id),))


@asynccontextmanager
async def during(serving: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """A consumer that serves meanwhile, and does not end by itself."""
    task = asyncio.create_task(serving)
    try:
        yield task
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.wait({task})


def _stream(folder: Path, *settings: str) -> Running:
    server = redis_server.start(folder, *settings)
    with SyncRedis(port=server.port) as client:
        client.xgroup_create("orders", "billing", id="0", mkstream=True)
    return server


def _publish(server: Running, number: int) -> None:
    with SyncRedis(port=server.port) as client:
        client.xadd("orders", {"semel-id": str(number)})


def _consumer(inbox: AsyncInbox, client: Any, **options: Any) -> RedisStreamConsumer:
    return RedisStreamConsumer(inbox, writes, client, stream="orders", group="billing", name="w", **options)


@pytest.mark.parametrize("limit", [{"socket_timeout": 0.2}, {"socket_timeout": None}, {}], ids=["short", "none", "own"])
def test_an_idle_stream_ends_no_consumer(limit: dict[str, Any], home: Home, tmp_path: Path) -> None:
    """redis-py 8 waits five seconds for an answer by default: as long as the consumer would wait for an entry."""
    server = _stream(tmp_path / "redis")
    waits: list[float] = []

    async def story(inbox: AsyncInbox) -> None:
        client: Any = Redis(port=server.port, **limit)
        read = client.xreadgroup

        async def reads(*given: Any, block: int, **named: Any) -> Any:
            waits.append(block / 1000)
            if len(waits) == 3:
                _publish(server, 7)
            return await read(*given, block=min(block, 300), **named)

        client.xreadgroup = reads
        async with during(_consumer(inbox, client).serve()):
            await until(lambda: home.effects() == [7])
        await client.aclose()

    run(home, story)
    stop(server)
    assert waits[0] == {0.2: 0.1, None: 5.0}.get(limit.get("socket_timeout", 5.0), 2.5)


def test_a_consumer_survives_the_restart_of_redis(home: Home, tmp_path: Path) -> None:
    server = _stream(tmp_path / "redis", "appendonly yes", "appendfsync always")
    _publish(server, 1)

    async def story(inbox: AsyncInbox) -> None:
        client = Redis(port=server.port, retry=Retry(NoBackoff(), 0))
        async with during(_consumer(inbox, client, idle_seconds=0.1).serve()):
            await until(lambda: home.effects() == [1])
            stop(server)
            again = redis_server.start(tmp_path / "redis", "appendonly yes", port=server.port)
            _publish(again, 2)
            await until(lambda: home.effects() == [1, 2])
            stop(again)
            await client.aclose()

    run(home, story)


def test_a_redis_client_that_decodes_is_taken_as_well(home: Home, tmp_path: Path) -> None:
    server = _stream(tmp_path / "redis")
    _publish(server, 1)
    with SyncRedis(port=server.port) as client:
        client.xadd("orders", {"order": "9"}, id="99999999999999-3")

    async def story(inbox: AsyncInbox) -> None:
        found: list[str] = []

        async def handler(message: Message, entry: Any) -> None:
            found.append(message.id)

        async with Redis(port=server.port, decode_responses=True) as client:
            consumer = RedisStreamConsumer(inbox, handler, client, stream="orders", group="billing", name="w")
            assert await consumer.turn() == 2
            assert found == ["1", "orders:99999999999999-3"]

    run(home, story)
    stop(server)


def test_a_missing_group_ends_the_consumer_and_names_the_remedy(home: Home, tmp_path: Path) -> None:
    server = redis_server.start(tmp_path / "redis")

    async def story(inbox: AsyncInbox) -> None:
        async with Redis(port=server.port) as client:
            with pytest.raises(ConfigurationError, match="XGROUP CREATE orders billing 0 MKSTREAM"):
                await _consumer(inbox, client).serve()

    run(home, story)
    stop(server)


def test_a_user_who_may_not_read_the_stream_ends_the_consumer(home: Home, tmp_path: Path) -> None:
    server = _stream(tmp_path / "redis")
    with SyncRedis(port=server.port) as client:
        client.execute_command("ACL", "SETUSER", "worker", "on", "nopass", "~orders", "+ping", "+client")

    async def story(inbox: AsyncInbox) -> None:
        async with Redis(port=server.port, username="worker", password="any") as client:
            with pytest.raises(ConfigurationError, match=r"refuses to read the stream 'orders': .*no permissions"):
                await asyncio.wait_for(_consumer(inbox, client).serve(), 10)

    run(home, story)
    stop(server)


async def _records(servers: str, count: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for n in range(count):
            await producer.send_and_wait("orders", b"{}", partition=0, headers=[("semel-id", str(n).encode())])


def _reader(servers: str, **options: Any) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        "orders", bootstrap_servers=servers, group_id="billing", auto_offset_reset="earliest", **options
    )


@pytest.mark.parametrize("error", [CommitFailedError, IllegalStateError])
def test_a_rebalance_during_a_handler_ends_no_consumer(
    home: Home, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    """Another member joins, a handler takes longer than max_poll_interval_ms, or a client that subscribes by a pattern
    finds another topic, and has no partitions until it has joined again: the record is redelivered.
    """

    async def story(inbox: AsyncInbox) -> None:
        with kafka_cluster.cluster("orders") as made:
            await _records(made.servers, 3)
            async with _reader(made.servers, enable_auto_commit=False) as client:
                commit, refused = client.commit, [1]

                async def commits() -> None:
                    if refused:
                        refused.pop()
                        raise error("no partitions assigned")
                    await commit()

                client.commit = commits
                place = TopicPartition("orders", 0)
                async with during(KafkaConsumer(inbox, writes).serve(client)) as serving:
                    while await client.committed(place) != 3 and not serving.done():
                        await asyncio.wait({serving}, timeout=0.05)

    run(home, story)
    assert home.effects() == [0, 1, 2]
    assert "record orders:0:0 was handled, and its offset not committed" in caplog.text


def test_a_client_that_commits_by_itself_is_refused_before_it_reads(home: Home) -> None:
    """It would commit a record whose handler runs still, and a worker that dies there would lose it."""

    async def story(inbox: AsyncInbox) -> None:
        with kafka_cluster.cluster("orders") as made:
            await _records(made.servers, 1)
            async with _reader(made.servers) as client:
                serving = KafkaConsumer(inbox, writes).serve(client)
                with pytest.raises(ConfigurationError, match="enable_auto_commit=False"):
                    await asyncio.wait_for(serving, 10)

    run(home, story)
    assert home.effects() == []


def test_an_outage_of_the_store_uses_up_no_delivery_of_jetstream(home: Home, tmp_path: Path) -> None:
    """A stream gives a message up after max_deliver: after an outage it would never come again."""
    server = nats_server.start(tmp_path)

    async def story(inbox: AsyncInbox) -> None:
        client = await nats.connect(nats_server.url(server))
        stream = client.jetstream()
        await stream.add_stream(name="orders", subjects=["orders"])
        await stream.add_consumer("orders", ConsumerConfig(durable_name="billing", max_deliver=2))
        await stream.publish("orders", b"{}", headers={"Nats-Msg-Id": "7"})
        subscription = await stream.pull_subscribe_bind("billing", stream="orders")
        outage = [StoreUnavailable("the store is away")] * 3
        counted: list[int] = []

        async def handler(message: Message, delivery: Any) -> None:
            counted.append(delivery.metadata.num_delivered)
            delivery.in_progress = in_progress
            if outage:
                raise outage.pop()
            await writes(message, delivery)

        async def in_progress() -> None:
            counted.append(0)

        consumer = JetStreamConsumer(inbox, handler, retry_seconds=0.01, failed=lambda id, error: None)
        async with during(consumer.serve(subscription, wait_seconds=0.1)):
            await until(lambda: home.effects() == [7])
        assert counted == [1, 0, 1, 0, 1, 0, 1]  # JetStream waits meanwhile
        await client.close()

    run(home, story)
    stop(server)
    assert home.effects() == [7]
