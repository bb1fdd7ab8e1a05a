"""Real brokers, and consumers that are killed between their effect and its acknowledgement."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats
import pytest
from aiokafka import AIOKafkaProducer
from nats.js.api import ConsumerConfig
from redis import Redis

from semel import AsyncEngine, AsyncInbox, AsyncOutbox
from semel.errors import ConfigurationError, HandlerError, InProgressError, StoreUnavailable
from semel.inbox.brokers.delivery import Deliveries, Handler
from semel.inbox.brokers.kafka import KafkaConsumer
from semel.inbox.brokers.nats import JetStreamConsumer
from semel.inbox.brokers.pulled import PulledConsumer
from semel.inbox.brokers.rabbitmq import RabbitConsumer
from semel.inbox.brokers.redis_streams import RedisStreamConsumer
from semel.inbox.run import Message
from semel.inbox.store import Receipt
from tests.bulk.fellows import Home, postgres_home, sqlite_home
from tests.inbox.worker import DURABLE, STREAM
from tests.servers import kafka as kafka_cluster
from tests.servers import nats as nats_server
from tests.servers import redis as redis_server
from tests.servers.postgres import postgres, schema
from tests.servers.running import stop

MESSAGES = 12


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return sqlite_home(str(tmp_path / "inbox.db"))


async def _fill_nats(url: str) -> None:
    client = await nats.connect(url)
    stream = client.jetstream()
    await stream.add_stream(name=STREAM, subjects=["orders.>"])
    await stream.add_consumer(STREAM, ConsumerConfig(durable_name=DURABLE, ack_wait=0.5))
    for n in range(MESSAGES):
        await stream.publish("orders.placed", b"{}", headers={"Nats-Msg-Id": str(n)})
    await client.close()


def _on_nats(folder: Path) -> tuple[str, Any]:
    folder.mkdir()
    server = nats_server.start(folder)
    asyncio.run(_fill_nats(nats_server.url(server)))
    return nats_server.url(server), server


def _on_redis(folder: Path) -> tuple[str, Any]:
    folder.mkdir()
    server = redis_server.start(folder)
    url = f"redis://127.0.0.1:{server.port}/0"
    with Redis.from_url(url) as client:
        client.xgroup_create(STREAM, DURABLE, id="0", mkstream=True)
        for n in range(MESSAGES):
            client.xadd(STREAM, {"semel-id": str(n), "payload": b"{}"})
    return url, server


async def _fill_kafka(servers: str) -> None:
    client = AIOKafkaProducer(bootstrap_servers=servers)
    await client.start()
    for n in range(MESSAGES):
        await client.send_and_wait(STREAM, b"{}", partition=0, headers=[("semel-id", str(n).encode())])
    await client.stop()


@contextmanager
def _kafka(folder: Path) -> Iterator[str]:
    with kafka_cluster.cluster(STREAM) as made:
        asyncio.run(_fill_kafka(made.servers))
        yield made.servers


@contextmanager
def _server(begin: Callable[[Path], tuple[str, Any]], folder: Path) -> Iterator[str]:
    url, server = begin(folder)
    try:
        yield url
    finally:
        stop(server)


@pytest.mark.parametrize(
    ("broker", "run", "store"),
    [
        ("nats", partial(_server, _on_nats), "sqlite"),
        ("redis", partial(_server, _on_redis), "sqlite"),
        ("kafka", _kafka, "sqlite"),
        ("redis", partial(_server, _on_redis), "postgresql"),
    ],
)
def test_a_consumer_is_killed_between_effect_and_acknowledgement(
    broker: str, run: Callable[[Path], AbstractContextManager[str]], store: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "inbox.db")
    home, place = sqlite_home(file) if store == "sqlite" else postgres_home(), f"sqlite:///{file}"
    if store != "sqlite":
        place = f"{postgres()}?schema={schema()}"
    receipts: list[str] = []
    with run(tmp_path / broker) as url:
        for dies_at in (4, 3, 0):
            command = [
                sys.executable,
                "-m",
                "tests.inbox.worker",
                broker,
                url,
                place,
                str(dies_at),
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
            assert done.returncode == (-signal.SIGKILL if dies_at else 0)
            receipts += done.stdout.split()
    assert home.effects() == list(range(MESSAGES))
    # Each message was handled once; those whose acknowledgement was lost came again, and nothing was done.
    told = Counter(receipts)
    assert told["handled"] == MESSAGES
    assert told["duplicate"] >= 2


class Delivery:
    """A RabbitMQ message as aio-pika hands it out, as far as an adapter looks at it."""

    routing_key = "orders"

    def __init__(self, message_id: str | None, count: int = 0, body: bytes = b"{}") -> None:
        self.message_id = message_id
        self.body = body
        self.headers = {"x-delivery-count": count} if count else {}
        self.said: list[str] = []

    async def ack(self) -> None:
        self.said.append("ack")

    async def nack(self, *, requeue: bool) -> None:
        self.said.append(f"nack {requeue}")


def test_a_rabbitmq_adapter_acknowledges_or_requeues(tmp_path: Path, home: Home) -> None:
    async def story() -> None:
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            inbox = AsyncInbox(engine, consumer="billing", tries_max=2)
            ran: list[str] = []

            async def handler(message: Message, delivery: Delivery) -> None:
                ran.append(message.id)
                if message.id == "bad":
                    raise ValueError
                if message.id == "away" and ran.count("away") < 30:  # longer than a quorum queue would have it
                    raise StoreUnavailable("the store is away")

            consumer = RabbitConsumer(
                inbox, handler, retry_seconds=0, failed=lambda id, error: ran.append(f"{id} failed")
            )
            said = []
            for id, count in (("one", 0), ("one", 1), ("bad", 0), ("bad", 1), ("bad", 2), ("away", 0)):
                delivery = Delivery(id, count)
                await consumer(delivery)
                said += delivery.said
            assert said == ["ack", "ack", "nack True", "ack", "ack", "ack"]
            assert ran[:4] == ["one", "bad", "bad failed", "bad"]
            assert ran[4:] == ["away", "away failed"] * 29 + ["away"]
            assert [parked.message_id for parked in await inbox.find_parked()] == ["bad"]
            with pytest.raises(ConfigurationError, match="no message_id"):
                await consumer(Delivery(None))

    asyncio.run(story())


def test_kafka_retries_a_record_before_later_ones(home: Home) -> None:
    async def story() -> None:
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            inbox = AsyncInbox(engine, consumer="billing", tries_max=3)
            ran: list[str] = []

            async def handler(message: Message, record: Any) -> None:
                ran.append(message.id)
                if record.offset == 0 and len(ran) < 3:
                    raise ValueError

            consumer = KafkaConsumer(inbox, handler, retry_seconds=0, failed=lambda id, error: None)

            class Client:
                commits = 0

                async def commit(self) -> None:
                    self.commits += 1

                async def __aiter__(self) -> Any:
                    for offset in (0, 1, 1):
                        headers = (("semel-id", b"e-1"),) if offset else ()
                        yield SimpleNamespace(topic="orders", partition=2, offset=offset, headers=headers)

            client = Client()
            await consumer.serve(client)
            assert ran == ["orders:2:0"] * 3 + ["e-1"]
            assert client.commits == 3

    asyncio.run(story())


def test_a_plain_function_as_an_adapters_handler_ends_it_and_parks_nothing(home: Home) -> None:
    def plain(message: Message, delivery: Any) -> None: ...

    async def main() -> None:
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            inbox = AsyncInbox(engine, consumer="billing", tries_max=1)
            for _ in range(2):
                with pytest.raises(HandlerError, match="takes a coroutine function"):
                    await Deliveries(inbox, plain).take("m-1", None, 1)  # type: ignore[arg-type]
            assert await inbox.find_parked() == []

    asyncio.run(main())


def test_a_message_that_makes_an_impossible_event_is_parked_and_ends_no_consumer(home: Home) -> None:
    """What an event may be hangs on what the message holds: another one does not fail so."""

    async def story() -> None:
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            outbox = AsyncOutbox(engine)

            async def handler(message: Message, record: Any) -> None:
                await outbox.emit(message.connection, "orders", {"total": record.value}, aggregate=("order", "1"))

            inbox = AsyncInbox(engine, consumer="billing", tries_max=3)
            consumer = KafkaConsumer(inbox, handler, retry_seconds=0)
            for offset, value in enumerate((1.0, float("nan"), 2.0)):
                await consumer.take(SimpleNamespace(topic="t", partition=0, offset=offset, headers=(), value=value))
            assert [(each.message_id, each.tries) for each in await inbox.find_parked()] == [("t:0:1", 3)]
            assert (await outbox.depth()).waiting == 2

    asyncio.run(story())


def test_invalid_ids_stop_no_consumer(home: Home) -> None:
    """Otherwise any publisher could end it, again and again."""
    given = [b"x" * 600, b"x" * 599 + b"y", b"\xff", b"\xfe", "\U0001f600".encode() * 500, b"x" * 600]

    async def story() -> None:
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            ran: list[int] = []

            async def handler(message: Message, record: Any) -> None:
                ran.append(record.offset)

            consumer = KafkaConsumer(AsyncInbox(engine, consumer="billing"), handler, retry_seconds=0)
            for offset, id in enumerate(given):
                record = SimpleNamespace(topic="orders", partition=2, offset=offset, headers=(("semel-id", id),))
                await consumer.take(record)
            assert ran == [0, 1, 2, 3, 4]

    asyncio.run(story())


class Pulled:
    """A JetStream message, as far as an adapter looks at it."""

    headers: dict[str, str] | None = None

    def __init__(self) -> None:
        self.metadata = SimpleNamespace(num_delivered=1, stream="orders", sequence=SimpleNamespace(stream=7))
        self.said: list[str] = []

    async def ack(self) -> None:
        self.said.append("ack")

    async def nak(self, *, delay: float) -> None:
        self.said.append(f"nak {delay}")

    async def in_progress(self) -> None: ...


class Group:
    """A Redis client with one entry, which is new and then pending, as far as an adapter looks at it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.reads = 0

    async def xautoclaim(self, *_: Any, **__: Any) -> Any:
        return b"0-0", [(b"1-0", {b"payload": b"{}"})] * bool(self.reads), []

    async def xpending_range(self, *_: Any, **__: Any) -> Any:
        return [{"times_delivered": self.reads}]

    async def xreadgroup(self, *_: Any, **__: Any) -> Any:
        self.reads += 1
        return [] if self.reads > 1 else [(b"orders", [(b"1-0", {b"payload": b"{}"})])]

    async def xack(self, *_: Any) -> None:
        self.said.append("ack")


class Leased(PulledConsumer[Delivery]):
    """An adapter of SQS's kind, before one message that came often."""

    LEASE_SECONDS_MAX, LEASE_NAME = 60, "lease_seconds"

    def __init__(self, inbox: AsyncInbox, handler: Handler) -> None:
        super().__init__(
            inbox,
            handler,
            "orders",
            lease_seconds=60,
            retry_seconds=0,
            retry_seconds_max=0,
            id_of=self.broker_id_of,
            failed=None,
        )

    def broker_id_of(self, delivery: Delivery) -> str:
        return str(delivery.message_id)

    def deliveries_of(self, delivery: Delivery) -> int:
        return 4


def test_tries_in_place_do_not_park_what_was_delivered_often(home: Home) -> None:
    """From more than ``tries_max`` deliveries on a try counts before it begins; but no worker ends by the store."""
    tried: list[str] = []

    async def handler(message: Message, delivery: Any) -> None:
        tried.append(message.id)
        if tried.count(message.id) < 9:
            raise StoreUnavailable("the store is away")

    async def story() -> None:
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            inbox = AsyncInbox(engine, consumer="billing", tries_max=3)
            rabbit, jetstream, sqs = Delivery("rabbit", count=3), Pulled(), Delivery("sqs")
            jetstream.metadata.num_delivered = 4
            await RabbitConsumer(inbox, handler, retry_seconds=0)(rabbit)
            await JetStreamConsumer(inbox, handler, retry_seconds=0).take(jetstream)
            assert await Leased(inbox, handler).take(sqs)
            assert await inbox.find_parked() == []

    asyncio.run(story())
    assert tried == [id for id in ("rabbit", "orders:7", "sqs") for _ in range(9)]


def test_an_entry_that_was_deleted_while_it_waited_ends_no_consumer(home: Home) -> None:
    """Redis 6.2 names such an entry with nothing, each time; later servers forget it."""

    class Trimmed(Group):
        async def xautoclaim(self, *_: Any, **__: Any) -> Any:
            return b"0-0", [(None, None)]

    async def story() -> None:
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            group, handled = Trimmed(), list[str]()

            async def handler(message: Message, delivery: Any) -> None:
                handled.append(message.id)

            inbox = AsyncInbox(engine, consumer="billing")
            consumer = RedisStreamConsumer(inbox, handler, group, stream="orders", group="billing", name="one")
            assert await consumer.turn() == 1
            assert (handled, group.said) == (["orders:1-0"], ["ack"])

    asyncio.run(story())


@pytest.mark.parametrize(
    ("named", "reason"),
    [(lambda delivery: delivery.order, "has no attribute 'order'"), (lambda _: None, "found no id in the message")],
)
def test_a_message_without_an_id_is_parked_under_its_position_and_ends_no_consumer(
    home: Home, named: Callable[[Any], str], reason: str
) -> None:
    """Otherwise any publisher could stop it: the broker delivers the message first again, after each restart."""

    async def story() -> None:
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            inbox = AsyncInbox(engine, consumer="billing", tries_max=2)

            async def handler(message: Message, delivery: Any) -> None:
                raise AssertionError("this must not run")

            options: Any = {"id_of": named, "failed": lambda id, error: None}
            rabbit, jetstream, group = Delivery("r-1"), Pulled(), Group()
            nameless = [Delivery(None), Delivery(None, count=1), Delivery(None, body=b"[]")]
            consumer = RedisStreamConsumer(
                inbox, handler, group, stream="orders", group="billing", name="one", **options
            )
            for _ in range(2):
                await RabbitConsumer(inbox, handler, **options)(rabbit)
                await JetStreamConsumer(inbox, handler, **options).take(jetstream)
                await consumer.turn()
            for each in nameless:
                await RabbitConsumer(inbox, handler, **options)(each)
            assert [each.said for each in nameless] == [["nack True"], ["ack"], ["nack True"]]
            record = SimpleNamespace(topic="t", partition=0, offset=1, headers=())
            await KafkaConsumer(inbox, handler, retry_seconds=0, **options).take(record)
            assert rabbit.said == ["nack True", "ack"]
            assert jetstream.said == ["nak 1.0", "ack"]
            assert group.said == ["ack"]
            parked = await inbox.find_parked()
            *others, digest, last = [each.message_id for each in parked]
            assert [*others, last] == ["orders:1-0", "orders:7", "r-1", "t:0:1"]
            assert digest.startswith("sha256:")
            assert all(reason in each.reason for each in parked)

    asyncio.run(story())


def test_a_decorated_consumer_of_any_library(home: Home) -> None:
    """Celery, Dramatiq, FastStream: a function that gets the library's own arguments."""

    async def story() -> None:
        async with AsyncEngine(home.backend("sqlite-async")) as engine:
            inbox = AsyncInbox(engine, consumer="billing")
            ran: list[Any] = []

            @inbox.once(lambda event: event["id"])
            async def consume(message: Message, event: dict[str, Any]) -> None:
                """Write it down."""
                ran.append((message.id, event["n"]))

            assert await consume({"id": "e-1", "n": 1}) is Receipt.HANDLED
            assert await consume({"id": "e-1", "n": 1}) is Receipt.DUPLICATE
            assert ran == [("e-1", 1)]
            assert consume.__doc__ == "Write it down."

    asyncio.run(story())


def test_a_decorated_coroutine_raises_while_another_worker_is_at_its_message(home: Home) -> None:
    class Busy(AsyncInbox):
        async def handle(self, *given: Any, **named: Any) -> Receipt:
            return Receipt.BUSY

    async def story() -> None:
        async with AsyncEngine(home.backend("sqlite-async")) as engine:

            @Busy(engine, consumer="billing").once(lambda event: event["id"])
            async def consume(message: Message, event: dict[str, Any]) -> None: ...

            with pytest.raises(InProgressError, match="another worker is handling message e-1; deliver it again later"):
                await consume({"id": "e-1"})

    asyncio.run(story())
