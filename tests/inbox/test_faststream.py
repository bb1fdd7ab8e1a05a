"""FastStream's subscribers on JetStream and other brokers: repetitions, failures, lost words. 3 s."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import nats
import pytest
from faststream import AckPolicy, Context
from faststream.exceptions import AckMessage, NackMessage, RejectMessage
from faststream.kafka import KafkaBroker
from faststream.nats import JStream, NatsBroker
from faststream.rabbit import RabbitBroker, RabbitQueue
from faststream.redis import RedisBroker, StreamSub
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig

from semel import AsyncEngine, AsyncInbox
from semel.errors import ConfigurationError, StoreUnavailable
from semel.inbox.brokers.faststream import InboxMiddleware, message_id
from semel.inbox.run import Message
from tests.bulk.fellows import Home, sqlite_home
from tests.engine.shells import until
from tests.outbox.conftest import unique
from tests.servers import kafka, rabbitmq, redis
from tests.servers import nats as nats_server

Handled = Annotated[Message, Context("inbox")]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return sqlite_home(str(tmp_path / "inbox.db"))


def run_story(story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(run())


class Lines:
    """What a subscriber did, and a wait for it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self._grew = asyncio.Event()

    def say(self, line: str) -> None:
        self.said.append(line)
        self._grew.set()

    async def has(self, count: int) -> None:
        while len(self.said) < count:
            self._grew.clear()
            await self._grew.wait()


async def _await_consumer(stream: Any, name: str, holds: Callable[[Any], bool]) -> Any:
    """What JetStream says of the consumer, once it holds."""
    for _ in range(5000):  # not for ever
        if holds(info := await stream.consumer_info(name, "billing")):
            return info
    pytest.fail(f"it never did: {info}")


@pytest.mark.parametrize("policy", [None, AckPolicy.NACK_ON_ERROR])
def test_a_subscriber_handles_each_message_once(policy: AckPolicy | None, home: Home) -> None:
    """Also under FastStream's own policy, which throws away what fails."""
    name = unique("faststream" if policy is None else "faststream-nack")
    named: dict[str, Any] = {} if policy is None else {"ack_policy": policy}

    async def story() -> None:
        client = await nats.connect(nats_server.nats())
        stream = client.jetstream()
        await stream.add_stream(name=name, subjects=[f"{name}.>"])
        lines, failed = Lines(), [False]
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            inbox = AsyncInbox(engine, consumer="billing", tries_max=2)
            once = InboxMiddleware(inbox, retry_seconds=0.01, failed=lambda id, error: lines.say(f"{id} failed"))
            broker = NatsBroker(nats_server.nats(), middlewares=[once], logger=None)

            @broker.subscriber(  # type: ignore[untyped-decorator]
                f"{name}.in", stream=JStream(name, declare=False), durable="billing", pull_sub=True, **named
            )
            @broker.publisher(f"{name}.out", stream=name)
            async def bill(n: int, message: Handled) -> int:
                message.connection.execute("INSERT INTO effect VALUES (?)", (n,))
                if n == 1 and not failed[0]:
                    failed[0] = True
                    raise ValueError("no luck")
                if n == 2:
                    raise RejectMessage
                lines.say(f"{message.id} ran")
                if n == 3:
                    raise AckMessage
                return n

            async with broker:
                await broker.start()
                for id, body in (("0", 0), ("0", 0), ("1", 1), ("2", 2), ("bad", "x"), ("3", 3), ("last", 9)):
                    await broker.publish(body, f"{name}.in", stream=name, headers={"semel-id": id})
                await lines.has(6)
                info = await _await_consumer(
                    stream, name, lambda info: not info.num_ack_pending and not info.num_pending
                )
            assert info.delivered.consumer_seq == 9  # 1 and "bad" came twice, and each was acknowledged
            assert sorted(lines.said) == ["0 ran", "1 failed", "1 ran", "3 ran", "bad failed", "last ran"]
            parked = {each.message_id: each.reason for each in await inbox.find_parked()}
            assert parked["2"] == "Message was rejected"
            assert sorted(parked) == ["2", "bad"]
        out = await stream.pull_subscribe(f"{name}.out", stream=name)
        assert sorted(each.data for each in await out.fetch(3, timeout=10)) == [b"0", b"1", b"9"]
        assert (await out.consumer_info()).num_pending == 0  # a repetition published nothing again
        await client.close()

    run_story(story)
    assert home.effects() == [0, 1, 3, 9]


def test_a_lost_acknowledgement_causes_no_second_effect(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    name, lost = unique("faststream-lost"), [True]
    acknowledge = Msg.ack

    async def is_lost_once(message: Msg) -> None:
        if lost.pop() if lost else False:
            return
        await acknowledge(message)

    async def story() -> None:
        client = await nats.connect(nats_server.nats())
        stream = client.jetstream()
        await stream.add_stream(name=name, subjects=[f"{name}.>"])
        await stream.add_consumer(name, ConsumerConfig(durable_name="billing", ack_wait=0.2, ack_policy="explicit"))  # type: ignore[arg-type]
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            middleware = InboxMiddleware(AsyncInbox(engine, consumer="billing"))
            broker = NatsBroker(nats_server.nats(), middlewares=[middleware], logger=None)

            @broker.subscriber(f"{name}.in", stream=JStream(name, declare=False), durable="billing", pull_sub=True)
            async def bill(n: int, message: Handled) -> None:
                message.connection.execute("INSERT INTO effect VALUES (?)", (n,))

            monkeypatch.setattr(Msg, "ack", is_lost_once)
            async with broker:
                await broker.start()
                await stream.publish(f"{name}.in", b"7")  # it has a place, and no name
                info = await _await_consumer(stream, name, lambda info: info.ack_floor.stream_seq == 1)
            assert info.delivered.consumer_seq == 2  # it came twice
        await client.close()

    run_story(story)
    assert home.effects() == [7]


@pytest.mark.parametrize("count", [1, 3])
def test_an_outage_of_the_store_uses_up_no_delivery_of_jetstream(home: Home, count: int) -> None:
    """A stream redelivers after its ack_wait, and gives a message up after max_deliver; nor does the inbox park it."""
    said: list[str] = []
    outage = [StoreUnavailable("the store is away")] * 3

    async def in_progress() -> None:
        said.append("in progress")

    async def handler(delivery: Any) -> None:
        if outage:
            raise outage.pop()
        said.append("ran")

    async def story() -> None:
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            middleware = InboxMiddleware(AsyncInbox(engine, consumer="billing", tries_max=2), retry_seconds=0)
            context = SimpleNamespace(get_local=lambda name: None, scope=lambda name, value: nullcontext())
            place = SimpleNamespace(stream="orders", sequence=SimpleNamespace(stream=7), num_delivered=count)
            raw = SimpleNamespace(nak=None, reply="$JS.ACK.orders", metadata=place, in_progress=in_progress)
            await middleware.consume(handler, _wrap_raw(raw), context)

    run_story(story)
    assert said == ["in progress"] * 3 + ["ran"]


def test_kafka_records_are_retried_in_place(home: Home) -> None:
    async def story(servers: str) -> None:
        lines, failed = Lines(), [True]
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            middleware = InboxMiddleware(AsyncInbox(engine, consumer="billing"), failed=lambda id, error: lines.say(id))
            broker = KafkaBroker(servers.split(","), middlewares=[middleware], logger=None)

            @broker.subscriber(
                "orders", group_id="billing", auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR
            )
            async def bill(n: int, message: Handled) -> None:
                message.connection.execute("INSERT INTO effect VALUES (?)", (n,))
                if n == 1 and failed and failed.pop():
                    raise ValueError("no luck")
                lines.say(f"{message.id} ran {n}")

            async with broker:
                await broker.start()
                for n in (0, 1, 2):
                    await broker.publish(n, "orders", partition=0)
                await lines.has(4)
            assert lines.said == ["orders:0:0 ran 0", "orders:0:1", "orders:0:1 ran 1", "orders:0:2 ran 2"]

    with kafka.cluster("orders") as cluster:
        run_story(lambda: story(cluster.servers))
    assert home.effects() == [0, 1, 2]


@pytest.mark.parametrize("kind", [pytest.param("rabbitmq", marks=rabbitmq.MARK), "redis"])
def test_a_failed_message_is_redelivered_on_other_brokers(kind: str, home: Home) -> None:
    """On Redis Streams from a second subscriber, which takes over what is pending."""
    name = unique("faststream-other")

    async def story() -> None:
        lines, failed = Lines(), [True]
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            middleware = InboxMiddleware(AsyncInbox(engine, consumer="billing"), failed=lambda id, error: lines.say(id))
            named: dict[str, Any] = {"middlewares": [middleware], "logger": None}

            async def bill(n: int, message: Handled) -> None:
                message.connection.execute("INSERT INTO effect VALUES (?)", (n,))
                if n == 1 and failed and failed.pop():
                    raise ValueError("no luck")
                lines.say(f"{message.id} ran {n}")

            broker: Any
            if kind == "rabbitmq":
                broker = RabbitBroker(rabbitmq.rabbitmq(), **named)
                broker.subscriber(RabbitQueue(name, auto_delete=True))(bill)
            else:
                broker = RedisBroker(f"redis://127.0.0.1:{redis.valkey()}/0", **named)
                group: dict[str, Any] = {"group": "billing", "polling_interval": 20}
                fresh = broker.subscriber(stream=StreamSub(name, consumer="one", **group))
                left = broker.subscriber(stream=StreamSub(name, consumer="two", min_idle_time=50, **group))
                fresh(left(bill))
            async with broker:
                await broker.start()
                for n in (0, 1, 0):
                    if kind == "rabbitmq":
                        await broker.publish(n, name, message_id=f"m-{n}")
                    else:
                        await broker.publish(n, stream=name, headers={"semel-id": f"m-{n}"})
                await lines.has(3)
            assert sorted(lines.said) == ["m-0 ran 0", "m-1", "m-1 ran 1"]

    run_story(story)
    assert home.effects() == [0, 1]


def test_a_subscriber_that_acknowledges_first_handles_nothing(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """As Kafka's do by default: it would go on through the topic, and lose one message after another."""

    class Handler:
        ack_policy = AckPolicy.ACK_FIRST

    async def story() -> None:
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            middleware = InboxMiddleware(AsyncInbox(engine, consumer="billing"), retry_seconds=0)
            context: Any = SimpleNamespace(get_local=lambda name: Handler())
            consuming = asyncio.create_task(middleware.consume(_never, _wrap_raw(None, **{"semel-id": "1"}), context))
            await until(lambda: "AckPolicy.ACK_FIRST does not acknowledge after the inbox" in caplog.text)
            for _ in range(100):
                await asyncio.sleep(0)
            assert not consuming.done()  # the messages behind it stay with their broker
            consuming.cancel()
            await asyncio.wait({consuming})

    run_story(story)


def test_a_message_without_an_id_is_redelivered(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            inbox = AsyncInbox(engine, consumer="billing")
            middleware = InboxMiddleware(inbox, retry_seconds=0, id_of=lambda seen: str(seen.headers["order"]))
            context = SimpleNamespace(get_local=lambda name: None)
            with pytest.raises(NackMessage):
                await middleware.consume(_never, _wrap_raw(None), context)

    run_story(story)
    assert "KeyError: 'order'" in caplog.text


def test_a_message_without_an_id_is_parked_under_its_position(home: Home) -> None:
    async def story() -> None:
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            inbox = AsyncInbox(engine, consumer="billing", tries_max=2)
            middleware = InboxMiddleware(inbox, retry_seconds=0, id_of=lambda seen: str(seen.headers["order"]))
            context = SimpleNamespace(get_local=lambda name: None, scope=lambda name, value: nullcontext())
            place = SimpleNamespace(topic="t", partition=2, offset=7)
            with pytest.raises(NackMessage):
                await middleware.consume(_never, _wrap_raw(place), context)
            with pytest.raises(AckMessage):
                await middleware.consume(_never, _wrap_raw(place), context)
            assert [each.message_id for each in await inbox.find_parked()] == ["t:2:7"]

    run_story(story)


async def _never(message: Any) -> None:
    raise AssertionError("this must not run")


def _wrap_raw(raw: Any, **headers: str) -> Any:
    return SimpleNamespace(raw_message=raw, headers=headers, message_id="made up", correlation_id="of many")


def test_an_id_is_the_publishers_or_the_position() -> None:
    assert message_id(_wrap_raw(None, **{"semel-id": "e-1", "Nats-Msg-Id": "n-1"})) == "e-1"
    assert message_id(_wrap_raw(None, **{"Nats-Msg-Id": "n-1"})) == "n-1"
    assert message_id(_wrap_raw(SimpleNamespace(message_id="a-1"))) == "a-1"
    assert message_id(_wrap_raw(SimpleNamespace(topic="t", partition=2, offset=7))) == "t:2:7"
    assert message_id(_wrap_raw({"channel": "orders", "message_ids": [b"1-0"]})) == "orders:1-0"
    called = SimpleNamespace(topic=lambda: "t", partition=lambda: 2, offset=lambda: 7)  # confluent-kafka's
    assert message_id(_wrap_raw(called)) == "t:2:7"
    with pytest.raises(ConfigurationError, match="neither an id nor a place"):
        message_id(_wrap_raw(SimpleNamespace(message_id=None)))


@pytest.mark.parametrize(
    "raw",
    [
        (SimpleNamespace(topic="t", partition=2, offset=7),),
        [SimpleNamespace(reply="$JS.ACK.")],
        {"type": "bstream", "channel": "orders", "message_ids": [b"1-0", b"2-0"]},
        {"type": "blist", "channel": "orders"},
    ],
)
def test_a_batch_is_not_identified_by_its_first_message(raw: Any) -> None:
    with pytest.raises(ConfigurationError, match="batch=False"):
        message_id(_wrap_raw(raw, **{"semel-id": "that-of-its-first"}))
