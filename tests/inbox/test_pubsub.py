"""Google's emulator of Pub/Sub: acknowledgement after the commit, extensions, what is given back, keys. 5 s."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import google.api_core.exceptions
import google.auth.exceptions
import grpc
import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from semel import AsyncEngine, AsyncInbox
from semel.errors import ConfigurationError, PolicyError, StoreUnavailable
from semel.inbox.brokers.pubsub import PubsubConsumer, attribute
from semel.inbox.run import Message
from tests.bulk.fellows import Home, sqlite_home, write
from tests.inbox.conftest import make_home
from tests.inbox.test_sqs import Client
from tests.servers.pubsub import MARK, pubsub

pytestmark = MARK
_numbers = itertools.count()
raised: Any = google.api_core.exceptions
raised_by_auth: Any = google.auth.exceptions


class Story:
    """A topic, its subscription, an inbox and a consumer of it."""

    def __init__(self, home: Home, channel: grpc.Channel, kind: str) -> None:
        self.publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
        self.client = Client(SubscriberClient(transport=SubscriberGrpcTransport(channel=channel)))
        name = f"orders-{os.getpid()}-{next(_numbers)}"
        self.topic, self.subscription = f"projects/semel/topics/{name}", f"projects/semel/subscriptions/{name}"
        self.publisher.create_topic(name=self.topic)
        made = {"name": self.subscription, "topic": self.topic, "enable_message_ordering": True}
        self.client._client.create_subscription(request=made)
        self.engine = AsyncEngine(home.backend(kind))
        self.inbox = AsyncInbox(self.engine, consumer="billing", tries_max=3)
        self.ran: list[str] = []
        self.fails: dict[str, list[Exception]] = {}

    def send(self, *ids: str, key: str = "") -> None:
        messages = [{"data": b"{}", "attributes": {"order": id}, "ordering_key": key} for id in ids]
        self.publisher.publish(request={"topic": self.topic, "messages": messages})

    async def handle(self, message: Message, delivery: Any) -> None:
        self.ran.append(message.id)
        if self.fails.get(message.id):
            raise self.fails[message.id].pop(0)
        await write(message, int(message.id))

    def consumer(
        self, handler: Callable[[Message, Any], Awaitable[object]] | None = None, **options: Any
    ) -> PubsubConsumer:
        given = {"id_of": attribute("order"), "retry_seconds": 0, "failed": lambda *_: None, **options}
        return PubsubConsumer(self.inbox, handler or self.handle, self.client, subscription=self.subscription, **given)

    async def until(self, consumer: PubsubConsumer, ready: Callable[[], bool]) -> None:
        while not ready():
            await consumer.turn(wait_seconds=1)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return sqlite_home(str(tmp_path / "inbox.db"))


def run(home: Home, story: Callable[[Story], Awaitable[None]], kind: str = "sqlite-async") -> None:
    async def body(channel: grpc.Channel) -> None:
        one = Story(home, channel, kind)
        async with asyncio.timeout(120), one.engine:
            await story(one)

    with grpc.insecure_channel(pubsub()) as channel:
        asyncio.run(body(channel))


@pytest.mark.parametrize("kind", ["sqlite-async", "asyncpg"])
def test_messages_are_handled_once_and_failures_are_redelivered_or_parked(kind: str, tmp_path: Path) -> None:
    home = make_home(kind, tmp_path)

    async def story(one: Story) -> None:
        one.fails = {"1": [ValueError("no")] * 9, "2": [ValueError("once")], "3": [StoreUnavailable("away")] * 9}
        one.send("1", "2", "3", "4")
        one.send("4")  # the publisher's own repetition has another message_id
        one.client.answers["acknowledge"] = [raised.ServiceUnavailable("lost")]
        consumer = one.consumer()
        await one.until(consumer, lambda: Counter(one.ran) == {"1": 3, "2": 2, "3": 10, "4": 1})
        assert [(each.message_id, each.tries) for each in await one.inbox.find_parked()] == [("1", 3)]

    run(home, story, kind)
    assert sorted(home.effects()) == [2, 3, 4]


def test_an_ordering_key_waits_behind_its_failure_and_a_slow_handler_is_extended(home: Home) -> None:
    async def story(one: Story) -> None:
        one.fails = {"1": [ValueError("once")]}
        one.send("1", "2", "3", key="a")

        async def slow(message: Message, delivery: Any) -> None:
            if message.id == "2":
                before = one.client.count("modify_ack_deadline")
                while one.client.count("modify_ack_deadline") < before + 2:
                    await asyncio.to_thread(lambda: None)
            await one.handle(message, delivery)

        consumer = one.consumer(slow, lease_seconds=1, retry_seconds=1)
        await one.until(consumer, lambda: "3" in one.ran)
        first = list(dict.fromkeys(one.ran[1:]))
        assert one.ran[0] == "1"
        assert first == ["1", "2", "3"]

    run(home, story)
    assert home.effects() == [1, 2, 3]


def test_stop_returns_the_rest_and_configuration_errors_are_reported(home: Home) -> None:
    async def story(one: Story) -> None:
        one.send("1", "2", "3")

        async def stops(message: Message, delivery: Any) -> None:
            await one.handle(message, delivery)
            stopping.stop()

        stopping = one.consumer(stops)
        await stopping.serve(wait_seconds=1)
        assert len(one.ran) == 1
        await one.until(one.consumer(), lambda: len(one.ran) == 3)
        for error, says in (
            (raised.PermissionDenied("no"), "roles/pubsub.subscriber"),
            (raised_by_auth.DefaultCredentialsError("no"), "GOOGLE_APPLICATION_CREDENTIALS"),
        ):
            one.client.answers["pull"] = [error]
            with pytest.raises(ConfigurationError, match=says):
                await one.consumer().serve(wait_seconds=1)
        one.client._client.delete_subscription(subscription=one.subscription)
        with pytest.raises(ConfigurationError, match="does not exist: create it"):
            await one.consumer().serve(wait_seconds=1)
        wrong: list[dict[str, Any]] = [{"lease_seconds": 601}, {"retry_seconds": -1}]
        for options in wrong:
            with pytest.raises(PolicyError, match=next(iter(options))):
                one.consumer(**options)
        with pytest.raises(PolicyError, match="subscription is projects"):
            PubsubConsumer(one.inbox, one.handle, one.client, subscription="orders")

    run(home, story)
    assert sorted(home.effects()) == [1, 2, 3]


def test_exactly_once_names_the_messages_whose_deadline_is_over(home: Home) -> None:
    """They are not begun; the others of the call were extended, or are tried again at the next extension."""

    class Refuses:
        def modify_ack_deadline(self, **_: Any) -> None:
            over = SimpleNamespace(metadata={"a": "PERMANENT_FAILURE_INVALID_ACK_ID", "b": "TRANSIENT_FAILURE_OTHER"})
            raise raised.FailedPrecondition("some failed", details=[over])

    inbox = AsyncInbox(AsyncEngine(home.backend("sqlite-async")), consumer="billing")
    consumer = PubsubConsumer(inbox, Story.handle, Refuses(), subscription="projects/p/subscriptions/s")  # type: ignore[arg-type]
    assert consumer.lend({"a": 30, "b": 30, "c": 30}) == ["a"]
