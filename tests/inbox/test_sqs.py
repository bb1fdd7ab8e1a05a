"""SQS as moto's server plays it: deletes after the commit, extensions, what is given back, the order of groups. 8 s."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from semel import AsyncEngine, AsyncInbox, Poison
from semel.errors import ConfigurationError, PolicyError, StoreUnavailable, UrlError
from semel.inbox.brokers.sqs import SqsConsumer, attribute, body_member, deduplication_id, payload_of
from semel.inbox.run import Message
from semel.outbox.sinks.base import Refused, Unreached
from semel.outbox.sinks.sqs import SqsSink
from semel.outbox.sinks.urls import connect_sink
from tests.bulk.fellows import Home, sqlite_home, write
from tests.inbox.conftest import make_home
from tests.outbox.sink_stories import event
from tests.servers.sqs import make_queue, sqs_client


class Client:
    """boto3's client, which counts its calls and fails those that a test chooses."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, list[Any]] = {}  # an exception, or an answer, instead of the next ones

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**given: Any) -> Any:
            self.calls.append((name, given))
            planned = self.answers.get(name)
            if planned:
                answer = planned.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return answer(given) if callable(answer) else answer
            return method(**given)

        return call

    def count(self, name: str) -> int:
        return sum(called == name for called, _ in self.calls)


def error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "ReceiveMessage")


class Story:
    """A queue, an inbox and a consumer of it; what ran, and what failed."""

    def __init__(self, home: Home, *, fifo: bool = False, kind: str = "sqlite-async") -> None:
        self.client = Client(sqs_client())
        self.queue = make_queue(self.client._client, fifo=fifo)
        self.fifo = fifo
        self.engine = AsyncEngine(home.backend(kind))
        self.ran: list[str] = []
        self.fails: dict[str, list[Exception]] = {}

    def send(self, id: str, body: str = "{}", group: str = "g") -> None:
        more = {"MessageGroupId": group, "MessageDeduplicationId": id} if self.fifo else {}
        named = {"order": {"DataType": "String", "StringValue": id}}
        self.client._client.send_message(QueueUrl=self.queue, MessageBody=body, MessageAttributes=named, **more)

    def consumer(
        self, handler: Callable[[Message, Any], Awaitable[object]] | None = None, **options: Any
    ) -> SqsConsumer:
        self.inbox = AsyncInbox(self.engine, consumer="billing", tries_max=options.pop("tries_max", 3))
        chosen = {"id_of": deduplication_id if self.fifo else attribute("order"), "retry_seconds": 0, **options}
        return SqsConsumer(
            self.inbox, handler or self.handle, self.client, queue=self.queue, failed=lambda *_: None, **chosen
        )

    async def handle(self, message: Message, delivery: Any) -> None:
        self.ran.append(message.id)
        if self.fails.get(message.id):
            raise self.fails[message.id].pop(0)
        await write(message, int(message.id))

    def left(self) -> tuple[int, int]:
        """How many messages are in the queue, and how many are with consumers."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client._client.get_queue_attributes(QueueUrl=self.queue, AttributeNames=names)["Attributes"]
        return int(found[names[0]]), int(found[names[1]])


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return sqlite_home(str(tmp_path / "inbox.db"))


def run(
    home: Home, story: Callable[[Story], Awaitable[None]], *, fifo: bool = False, kind: str = "sqlite-async"
) -> None:
    async def body() -> None:
        one = Story(home, fifo=fifo, kind=kind)
        async with asyncio.timeout(60), one.engine:
            await story(one)

    asyncio.run(body())


@pytest.mark.parametrize("kind", ["sqlite-async", "asyncpg"])
def test_a_message_is_handled_once_and_deleted_after_its_commit(kind: str, tmp_path: Path) -> None:
    home = make_home(kind, tmp_path)

    async def story(one: Story) -> None:
        for n in range(12):
            one.send(str(n))
        one.send("3")  # the publisher's own repetition has another MessageId
        consumer = one.consumer()
        assert await consumer.turn(wait_seconds=0) == 10
        assert await consumer.turn(wait_seconds=0) == 3
        assert one.left() == (0, 0)
        assert sorted(one.ran, key=int) == [str(n) for n in range(12)]
        assert one.client.count("delete_message_batch") == 2

    run(home, story, kind=kind)
    assert home.effects() == list(range(12))


def test_a_message_that_was_not_deleted_is_redelivered_and_does_nothing(home: Home) -> None:
    def refuse(given: dict[str, Any]) -> dict[str, Any]:
        return {"Failed": [{"Id": "0", "Code": "ReceiptHandleIsInvalid", "SenderFault": True}]}

    async def story(one: Story) -> None:
        one.send("1")
        consumer = one.consumer()
        for lost in (refuse, EndpointConnectionError(endpoint_url="https://sqs"), None):
            one.client.answers["delete_message_batch"] = [] if lost is None else [lost]
            assert await consumer.turn(wait_seconds=0) == 1
            if lost is not None:
                handle = _last_handle(one)
                one.client._client.change_message_visibility(
                    QueueUrl=one.queue, ReceiptHandle=handle, VisibilityTimeout=0
                )
        assert one.left() == (0, 0)
        assert one.ran == ["1"]

    run(home, story)
    assert home.effects() == [1]


def _last_handle(one: Story) -> str:
    [entries] = [given["Entries"] for name, given in one.client.calls if name == "delete_message_batch"][-1:]
    return str(entries[-1]["ReceiptHandle"])


def test_a_failure_is_redelivered_until_it_is_parked_and_others_continue(home: Home) -> None:
    async def story(one: Story) -> None:
        one.fails = {"1": [ValueError("no")] * 9, "2": [ValueError("once")], "3": [Poison("its schema is version 9")]}
        for id in ("1", "2", "3", "4"):
            one.send(id)
        consumer = one.consumer()
        while await consumer.turn(wait_seconds=0):
            pass
        assert Counter(one.ran) == {"1": 3, "2": 2, "3": 1, "4": 1}
        assert [(each.message_id, each.tries) for each in await one.inbox.find_parked()] == [("1", 3), ("3", 3)]
        assert one.left() == (0, 0)

    run(home, story)
    assert sorted(home.effects()) == [2, 4]


def test_a_failed_message_waits_longer_each_time() -> None:
    waits = SqsConsumer.backoff  # of any consumer
    made = SqsConsumer.__new__(SqsConsumer)
    made._retry_seconds, made._retry_seconds_max = 1.0, 300.0
    assert [waits(made, n) for n in (1, 2, 3, 9, 10, 10_000)] == [1, 2, 4, 256, 300, 300]


def test_a_slow_handler_extends_its_message_and_the_rest_of_its_batch(home: Home) -> None:
    async def story(one: Story) -> None:
        for id in ("1", "2"):
            one.send(id)

        async def slow(message: Message, delivery: Any) -> None:
            if not one.ran:
                while one.client.count("change_message_visibility_batch") < 3:
                    await asyncio.to_thread(lambda: None)
            one.ran.append(message.id)

        await one.consumer(slow, visibility_seconds=1).turn(wait_seconds=0)
        extended = [given["Entries"] for name, given in one.client.calls if name == "change_message_visibility_batch"]
        assert [len(entries) for entries in extended[:3]] == [2, 2, 2]
        assert {entry["VisibilityTimeout"] for entries in extended[:3] for entry in entries} == {1}
        assert sorted(one.ran) == ["1", "2"]

    run(home, story)


def test_a_message_whose_extension_is_refused_is_not_begun(home: Home) -> None:
    """Its receipt handle is over: another consumer has it by now."""

    async def story(one: Story) -> None:
        for id in ("1", "2"):
            one.send(id)
        refused = asyncio.Event()
        loop = asyncio.get_running_loop()

        def refuse_second(given: dict[str, Any]) -> dict[str, Any]:
            loop.call_soon_threadsafe(refused.set)
            return {"Failed": [{"Id": "1", "Code": "ReceiptHandleIsInvalid", "SenderFault": True}]}

        one.client.answers["change_message_visibility_batch"] = [refuse_second]

        async def slow(message: Message, delivery: Any) -> None:
            one.ran.append(message.id)
            await refused.wait()
            while one.client.count("change_message_visibility_batch") < 2:  # the next extension names one message
                await asyncio.to_thread(lambda: None)

        await one.consumer(slow, visibility_seconds=1).turn(wait_seconds=0)
        assert len(one.ran) == 1
        entries = [given["Entries"] for name, given in one.client.calls if name == "change_message_visibility_batch"]
        assert [len(each) for each in entries[:2]] == [2, 1]

    run(home, story)


def test_a_fifo_group_waits_behind_its_failure_and_other_groups_do_not(home: Home) -> None:
    async def story(one: Story) -> None:
        one.fails = {"1": [ValueError("once"), ValueError("twice")]}
        for id, group in (("1", "a"), ("2", "a"), ("3", "b"), ("4", "a")):
            one.send(id, group=group)
        consumer = one.consumer()
        while await consumer.turn(wait_seconds=0):
            pass
        assert [id for id in one.ran if id != "3"] == ["1", "1", "1", "2", "4"]
        assert one.ran.index("3") < one.ran.index("2")
        assert one.left() == (0, 0)

    run(home, story, fifo=True)


def test_a_message_without_its_declared_id_is_parked_under_sqs_own(home: Home) -> None:
    async def story(one: Story) -> None:
        for body in ("no json", '{"id": null}', "[]", '{"id": 7}'):
            one.send("x", body)
        consumer = one.consumer(id_of=body_member("id"))
        while await consumer.turn(wait_seconds=0):
            pass
        assert one.ran == ["7"]
        parked = await one.inbox.find_parked()
        assert sorted(each.reason.partition(":")[0] for each in parked) == [
            "JSONDecodeError",
            "ValueError",
            "ValueError",
        ]
        assert one.left() == (0, 0)

    run(home, story)


def test_an_unavailable_store_is_waited_for_without_another_receive(home: Home) -> None:
    """A redrive policy counts receives: an outage of the database must not empty the queue into its dead letters."""

    async def story(one: Story) -> None:
        one.fails = {"1": [StoreUnavailable("the store is away")] * 20}
        one.send("1")
        assert await one.consumer().turn(wait_seconds=0) == 1
        assert one.ran == ["1"] * 21
        assert one.client.count("receive_message") == 1
        assert await one.inbox.find_parked() == []

    run(home, story)
    assert home.effects() == [1]


def test_stop_ends_after_the_current_message_and_returns_the_rest(home: Home) -> None:
    async def story(one: Story) -> None:
        for n in range(5):
            one.send(str(n))

        async def stops(message: Message, delivery: Any) -> None:
            one.ran.append(message.id)
            consumer.stop()

        consumer = one.consumer(stops)
        await consumer.serve(wait_seconds=0)
        assert len(one.ran) == 1
        assert one.left() == (4, 0)

    run(home, story)


def test_a_consumer_that_was_stopped_before_it_served_receives_nothing(home: Home) -> None:
    async def story(one: Story) -> None:
        consumer = one.consumer()
        consumer.stop()
        await consumer.serve(wait_seconds=0)
        assert one.client.count("receive_message") == 0

    run(home, story)


def test_a_cancelled_consumer_rolls_back_and_returns_all_messages(home: Home) -> None:
    async def story(one: Story) -> None:
        for n in range(3):
            one.send(str(n))
        begun = asyncio.Event()

        async def hangs(message: Message, delivery: Any) -> None:
            message.connection.execute("INSERT INTO effect VALUES (99)")
            begun.set()
            await asyncio.Event().wait()

        serving = asyncio.create_task(one.consumer(hangs).serve(wait_seconds=0))
        await begun.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert one.left() == (3, 0)

    run(home, story)
    assert home.effects() == []


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (None, "does not exist: create it"),
        (error("AccessDenied"), "allow sqs:ReceiveMessage"),
        (error("InvalidClientTokenId"), "refuses these credentials"),
        (NoCredentialsError(), "AWS_ACCESS_KEY_ID"),
    ],
)
def test_a_configuration_error_ends_the_consumer_with_a_message(
    raised: Exception | None, says: str, home: Home
) -> None:
    async def story(one: Story) -> None:
        if raised is None:
            one.client._client.delete_queue(QueueUrl=one.queue)
        else:
            one.client.answers["receive_message"] = [raised]
        with pytest.raises(ConfigurationError, match=says):
            await one.consumer().serve(wait_seconds=0)

    run(home, story)


def test_an_outage_of_sqs_is_waited_for_and_logged_once(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    async def story(one: Story) -> None:
        one.send("1")
        one.client.answers["receive_message"] = [
            EndpointConnectionError(endpoint_url="https://sqs"),
            error("OverLimit"),
        ]

        async def stops(message: Message, delivery: Any) -> None:
            await one.handle(message, delivery)
            consumer.stop()

        consumer = one.consumer(stops)
        await consumer.serve(wait_seconds=0)

    run(home, story)
    assert home.effects() == [1]
    assert sum("cannot be read" in line.message for line in caplog.records) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "orders"},
        {"visibility_seconds": 0},
        {"visibility_seconds": 43_201},
        {"visibility_seconds": 1.5},
        {"retry_seconds": -1},
        {"retry_seconds_max": "x"},
    ],
)
def test_an_impossible_option_is_named(options: dict[str, Any], home: Home) -> None:
    inbox = AsyncInbox(AsyncEngine(home.backend("sqlite-async")), consumer="billing")
    given = {"queue": "https://sqs.example/1/orders", **options}
    with pytest.raises(PolicyError, match=next(iter(options))):
        SqsConsumer(inbox, Story.handle, None, **given)  # type: ignore[arg-type]


def test_a_consumer_is_killed_between_effect_and_deletion(home: Home, tmp_path: Path) -> None:
    client = sqs_client()
    queue = make_queue(client, fifo=True)
    for n in range(7):
        client.send_message(QueueUrl=queue, MessageBody="{}", MessageGroupId=str(n), MessageDeduplicationId=str(n))
    receipts: list[str] = []
    for dies_at in (1, 0):
        command = [
            sys.executable,
            "-m",
            "tests.inbox.worker",
            "sqs",
            queue,
            f"sqlite:///{tmp_path}/inbox.db",
            str(dies_at),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
        assert done.returncode == (-signal.SIGKILL if dies_at else 0)
        receipts += done.stdout.split()
    assert home.effects() == list(range(7))
    assert Counter(receipts)["handled"] == 7
    assert Counter(receipts)["duplicate"] >= 1


# --- the outbox's sink ---


def test_events_arrive_with_their_identity_headers_and_bytes() -> None:
    client = sqs_client()
    queue = make_queue(client)
    sent = [
        event("orders.placed", {"total": 10}, headers={"x-trace": "é"}),
        event("a", b"\x00\xff"),
        event("a", b""),
        event("a", "\x01 text"),
    ]
    assert asyncio.run(SqsSink(client, queue).publish(sent)) == [None] * 4
    found = client.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, MessageAttributeNames=["All"])["Messages"]
    met = {each["MessageAttributes"]["semel-id"]["StringValue"]: each for each in found}
    assert {id: payload_of(each) for id, each in met.items()} == {each.id: each.payload for each in sent}
    attributes = met[sent[0].id]["MessageAttributes"]
    assert json.loads(attributes["semel-headers"]["StringValue"]) == {"x-trace": "é"}
    assert attributes["semel-topic"]["StringValue"] == "orders.placed"
    assert attributes["semel-aggregate-id"]["StringValue"] == "7%C3%A9"


def test_a_fifo_queue_drops_an_event_that_is_sent_again_and_keeps_its_aggregates_order() -> None:
    client = sqs_client()
    queue = make_queue(client, fifo=True)
    sent = [event("a", {"n": n}, id="7" if n % 2 else "x y") for n in range(12)]
    sink = SqsSink(client, queue)
    assert asyncio.run(sink.publish(sent)) == [None] * 12
    assert asyncio.run(sink.publish(sent[:3])) == [None] * 3
    got: list[dict[str, Any]] = []
    while found := client.receive_message(
        QueueUrl=queue, MaxNumberOfMessages=10, MessageSystemAttributeNames=["All"]
    ).get("Messages"):
        got += found
        client.delete_message_batch(
            QueueUrl=queue,
            Entries=[{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(found)],
        )
    assert sorted(each["Attributes"]["MessageDeduplicationId"] for each in got) == sorted(each.id for each in sent)
    for remainder in (0, 1):
        numbers = [n for each in got if (n := json.loads(each["Body"])["n"]) % 2 == remainder]
        assert numbers == sorted(numbers)


def test_each_event_gets_its_own_result() -> None:
    client = Client(sqs_client())
    queue = make_queue(client._client)
    sink = SqsSink(client, queue)
    large = event("a")._replace(payload=b"x" * 1_048_000, headers=(("x", "y" * 1000),))
    reply, other = asyncio.run(sink.publish([large, event("b")]))
    assert isinstance(reply, Refused)
    assert reply.for_good
    assert other is None
    client.answers["send_message_batch"] = [
        {
            "Successful": [{"Id": "0"}],
            "Failed": [
                {"Id": "1", "Code": "InvalidMessageContents", "SenderFault": True},
                {"Id": "2", "Code": "InternalError", "SenderFault": False},
            ],
        }
    ]
    replies = asyncio.run(sink.publish([event("a") for _ in range(4)]))
    assert [type(each) for each in replies] == [type(None), Refused, Unreached, Unreached]
    client.answers["send_message_batch"] = [
        error("InvalidMessageContents"),
        {"Successful": [{"Id": "0"}]},
        error("InvalidMessageContents"),
    ]
    assert [type(each) for each in asyncio.run(sink.publish([event("a"), event("b")]))] == [type(None), Refused]
    for raised in (NoCredentialsError(), error("AccessDenied"), error("ThrottlingException")):
        client.answers["send_message_batch"] = [raised]
        assert [type(each) for each in asyncio.run(sink.publish([event("a")]))] == [Unreached]
    client._client.delete_queue(QueueUrl=queue)
    [reply] = asyncio.run(sink.publish([event("a")]))
    assert isinstance(reply, Unreached)
    assert "does not exist" in reply.reason


def test_a_sink_by_its_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    client = sqs_client()
    queue = make_queue(client)
    sink = connect_sink(f"sqs://{queue.removeprefix('http://')}?tls=no&region=eu-central-1")

    async def publish() -> None:
        assert await sink.publish([event("a")]) == [None]
        await sink.close()

    asyncio.run(publish())
    named = connect_sink("sqs://sqs.eu-central-1.amazonaws.com/123456789012/orders")
    assert named.name == "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"
    for url in ("sqs://orders", "sqs://h/1/orders", "sqs://a:b@h/1/q?region=x", "sqs://h/1/q?tls=maybe&region=x"):
        with pytest.raises(UrlError):
            connect_sink(url)
