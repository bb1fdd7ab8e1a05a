"""Sinks on real brokers: what arrives, under which id, and the error for an event that a broker refuses. 10 s."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import aio_pika
import nats as nats_client
import pytest
import redis.asyncio as redis_client
from nats.errors import Error as NatsError

from semel.errors import ConfigurationError, UrlError
from semel.extras import install_command
from semel.outbox.event import Event
from semel.outbox.run import own_event
from semel.outbox.sinks.base import Unreached
from semel.outbox.sinks.urls import connect_sink
from semel.outbox.sinks.webhook import VARIABLE
from tests.outbox.conftest import unique
from tests.outbox.sink_stories import WRITTEN, assert_refused, event, run_story, sink_of
from tests.servers import nats, rabbitmq, redis, running
from tests.servers.running import free_port, stop

# --- NATS ---


def test_nats_jetstream_has_the_event_once_however_often_it_is_sent() -> None:
    async def story() -> None:
        name = unique("once")
        client = await nats_client.connect(nats.nats())
        stream = client.jetstream()
        await stream.add_stream(name=name, subjects=[f"{name}.>"])
        sent = [event(f"{name}.a", headers={"trace": "100%"}), event(f"{name}.b", {"n": 2})]
        async with sink_of(nats.nats()) as sink:
            assert await sink.publish(sent) == [None, None]
            assert await sink.publish(sent) == [None, None]
        found = await stream.get_last_msg(name, f"{name}.a")
        assert found.data == sent[0].payload
        assert found.headers is not None
        assert found.headers["Nats-Msg-Id"] == sent[0].id
        assert found.headers["semel-aggregate-id"] == "7%C3%A9"
        assert found.headers["trace"] == "100%25"
        assert (await stream.stream_info(name)).state.messages == 2
        await client.close()

    run_story(story)


def test_nats_reports_which_event_it_refuses() -> None:
    async def story() -> None:
        name = unique("small")
        client = await nats_client.connect(nats.nats())
        await client.jetstream().add_stream(name=name, subjects=[f"{name}.>"], max_msg_size=500)
        async with sink_of(nats.nats()) as sink:
            replies = await sink.publish([event(f"{name}.a"), event("no.stream.here"), event(f"{name}.b", b"x" * 1000)])
        assert replies[0] is None
        assert_refused(replies[1], "no stream takes the subject no.stream.here")
        assert_refused(replies[2], "maximum", for_good=True)
        await client.close()

    run_story(story)


def test_events_reach_nats_after_an_outage(tmp_path: Any) -> None:
    async def story() -> None:
        server = nats.start(tmp_path)
        client = await nats_client.connect(nats.url(server))
        await client.jetstream().add_stream(name="s", subjects=["s.>"])
        await client.close()
        async with sink_of(nats.url(server)) as sink:
            assert await sink.publish([event("s.a")]) == [None]
            await asyncio.to_thread(running.stop, server)
            [reply] = await sink.publish([event("s.a")])
            assert isinstance(reply, Unreached)
            again = await asyncio.to_thread(nats.start, tmp_path, port=server.port)
            try:
                assert await sink.publish([event("s.a")]) == [None]
            finally:
                await asyncio.to_thread(running.stop, again)

    run_story(story)


def test_nats_without_jetstream_is_an_outage(tmp_path: Path) -> None:
    """A server answers "no responders" while JetStream is not up: ten tries of that would park every event."""

    async def story() -> None:
        async with sink_of(nats.url(server)) as sink:
            [reply] = await sink.publish([event("s.a")])
            assert isinstance(reply, Unreached)
            assert "no responder listens on the subject s.a" in reply.reason

    server = nats.start(tmp_path, jetstream=False)
    try:
        run_story(story)
    finally:
        stop(server)


def test_a_nats_stream_without_its_server_is_an_outage(tmp_path: Path) -> None:
    """Three servers; the one that has the stream ends: "no responders", and the stream exists."""

    async def story(servers: list[running.Running]) -> None:
        client = await nats_client.connect(nats.url(servers[0]))
        stream = client.jetstream()
        for _ in range(500):  # it elects its own leader first
            if await _make_stream(stream):
                break
        leader = (await stream.stream_info("s")).cluster
        assert leader is not None
        lost = next(n for n in range(3) if leader.leader == f"n{n}")
        await client.close()
        await asyncio.to_thread(stop, servers[lost])
        async with sink_of(nats.url(servers[lost - 1])) as sink:
            for _ in range(50):  # a new leader of the cluster is found meanwhile
                replies = await sink.publish([event("s.a"), event("none.b")])
                if not isinstance(replies[1], Unreached):
                    break
            assert isinstance(replies[0], Unreached)
            assert "the stream 's', which takes the subject s.a, does not answer" in replies[0].reason
            assert_refused(replies[1], "no stream takes the subject none.b")

    async def _make_stream(stream: Any) -> bool:
        try:
            await stream.add_stream(name="s", subjects=["s.>"])
        except NatsError:
            return False
        return True

    servers = nats.start_cluster(tmp_path)
    try:
        run_story(lambda: story(servers))
    finally:
        for server in servers:
            stop(server)


# --- RabbitMQ ---


@rabbitmq.MARK
def test_rabbitmq_confirms_in_a_quorum_queue_and_returns_unroutable_events() -> None:
    async def story() -> None:
        url, name = rabbitmq.rabbitmq(), unique("orders")
        sent = event(name, headers={"trace": "1"})
        async with sink_of(f"{url}?declare=quorum") as sink:
            assert await sink.publish([sent]) == [None]
        async with sink_of(url) as sink:
            replies = await sink.publish([event(name, {"n": 2}), event("nobody.listens")])
            assert replies[0] is None
            assert_refused(replies[1], "no queue for the routing key 'nobody.listens'")
            assert await sink.publish([event(name, {"n": 3})]) == [None]  # the channel is as good as before
        async with sink_of(f"{url}?exchange=missing") as sink:
            [reply] = await sink.publish([sent])
            assert isinstance(reply, Unreached)
            assert "no exchange 'missing'" in reply.reason
        connection = await aio_pika.connect(url)
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
            message = await queue.get(timeout=10)
            assert message is not None
            await message.ack()
            assert (message.body, message.message_id, message.type) == (sent.payload, sent.id, name)
            assert message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
            assert message.headers["semel-aggregate-id"] == "7é"
            assert message.headers["trace"] == "1"

    run_story(story)


@rabbitmq.MARK
def test_a_full_rabbitmq_queue_is_an_outage_for_its_events() -> None:
    async def story() -> None:
        url, name = rabbitmq.rabbitmq(), unique("full")
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            full: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
            queue = await channel.declare_queue(name, durable=True, arguments=full)
            async with sink_of(url) as sink:
                assert await sink.publish([event(name)]) == [None]
                [reply] = await sink.publish([event(name)])
                assert isinstance(reply, Unreached)
                assert f"no queue for the routing key {name!r}" in reply.reason
                await (await queue.get(timeout=10)).ack()
                assert await sink.publish([event(name)]) == [None]
            await queue.delete(if_unused=False, if_empty=False)

    run_story(story)


@rabbitmq.MARK
def test_a_type_too_long_for_amqp_is_cut_at_a_whole_character() -> None:
    """A short string has 255 bytes, an event's type 255 letters."""

    async def story() -> None:
        url, name, long = rabbitmq.rabbitmq(), unique("long"), "é" * 200
        sent = own_event(None, name, b"", long, ("order", "1"), None, "")
        async with sink_of(f"{url}?declare=quorum") as sink:
            assert await sink.publish([sent]) == [None]
        async with await aio_pika.connect(url) as connection:
            queue = await (await connection.channel()).get_queue(name)
            message = await queue.get(timeout=10)
            assert message is not None
            await message.ack()
            assert (message.type, message.headers["semel-type"]) == ("é" * 127, long)
            await queue.delete(if_unused=False, if_empty=False)

    run_story(story)


def test_an_unreachable_rabbitmq_is_an_outage() -> None:
    async def story() -> None:
        async with sink_of(f"amqp://127.0.0.1:{free_port()}/") as sink:
            [reply] = await sink.publish([event("a")])
            assert isinstance(reply, Unreached)

    run_story(story)


# --- Redis ---


def test_redis_streams_have_the_payload_and_the_id() -> None:
    async def story() -> None:
        url, name = f"redis://127.0.0.1:{redis.valkey()}/0", unique("orders")
        sent = [event(name), event("taken", {"n": 2})]
        client = redis_client.Redis.from_url(url)
        await client.set(f"{unique('p')}:taken", "a string")
        async with sink_of(f"{url}?prefix={unique('p')}:&maxlen=1000") as sink:
            replies = await sink.publish(sent)
        assert replies[0] is None
        assert_refused(replies[1], "WRONGTYPE")
        entries: Any = await client.xrange(f"{unique('p')}:{name}")
        [(_, fields)] = entries
        assert fields[b"payload"] == sent[0].payload
        assert fields[b"semel-id"] == sent[0].id.encode()
        assert fields[b"semel-aggregate-id"] == "7é".encode()
        async with sink_of(f"{url}?create=no") as sink:
            [reply] = await sink.publish([event("never.made")])
            assert_refused(reply, "there is no stream 'never.made'")
        await client.aclose()

    run_story(story)


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),  # a failover has left it behind
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
        (("CONFIG", "SET", "min-replicas-to-write", "1"), ("CONFIG", "SET", "min-replicas-to-write", "0")),
    ],
    ids=lambda words: words[0] + words[-2],
)
def test_redis_that_takes_no_writes_is_an_outage(begin: tuple[str, ...], end: tuple[str, ...], tmp_path: Path) -> None:
    async def story(port: int) -> None:
        client: Any = redis_client.Redis(port=port)
        async with sink_of(f"redis://127.0.0.1:{port}/0") as sink:
            await client.execute_command(*begin)
            assert [type(reply) for reply in await sink.publish([event("a"), event("b")])] == [Unreached, Unreached]
            await client.execute_command(*end)
            assert await sink.publish([event("a")]) == [None]
        await client.aclose()

    server = redis.start(tmp_path / "redis")
    try:
        run_story(lambda: story(server.port))
    finally:
        stop(server)


def test_an_unreachable_redis_is_an_outage() -> None:
    async def story() -> None:
        async with sink_of(f"redis://127.0.0.1:{free_port()}/0") as sink:
            [reply] = await sink.publish([event("a")])
            assert isinstance(reply, Unreached)

    run_story(story)


# --- URLs ---


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nat://h", "did you mean 'nats'"),
        ("nats://", "needs a host"),
        ("nats://h?prefi=x", "unknown option 'prefi'"),
        ("nats://h?prefix=x&prefix=y", "twice"),
        ("amqp://h?declare=yes", "quorum or absent"),
        ("amqp://h?declare=quorum&exchange=x", "leave one out"),
        ("kafka://u:p@h:1", "no account"),
        ("kafka://h:1?idempotence=maybe", "yes or no"),
        ("redis://h?maxlen=0", "from 1"),
        ("http://h/", "https://"),
        ("https://h/?private=perhaps", "yes or no"),
        ("python:", "python:MODULE:FUNCTION"),
        ("python:no_such_module:f", "cannot be imported"),
        ("python:os:no_such_function", "has no function"),
        ("nonsense", "unknown sink"),
        ("amqp://shop:part/of-secret@h:5672/", "percent-encode"),
        ("//shop:of-secret@h", "unknown sink"),
    ],
)
def test_an_impossible_sink_url_is_refused_with_the_reason(
    url: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, WRITTEN)
    with pytest.raises(UrlError, match=says) as raised:
        connect_sink(url)
    assert not any(part in str(raised.value) for part in ("part", "of-secret"))


@pytest.mark.parametrize(
    "url",
    [
        "nats://of-secret@h:4222,g:4222?prefix=a.",  # NATS takes a token there
        "nats://shop:of-secret@h:4222,g:4222",
        "amqp://shop:of-secret@h/",
        "redis://:of-secret@h:6379/0",
        "https://shop:of-secret@shop.example/hooks",
        "https://shop.example/hooks/of-secret",
    ],
)
def test_the_name_of_a_sink_holds_no_secret(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, WRITTEN)
    assert "of-secret" not in connect_sink(url).name


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("nats://mq.example", "nats://mq.example?prefix=shop."),
        ("redis://mq.example", "redis://mq.example?prefix=shop:"),
        ("amqp://mq.example", "amqp://mq.example?exchange=shop"),
        ("https://mq.example/orders", "https://mq.example/mails"),
    ],
)
def test_sinks_with_two_targets_on_one_server_are_two(one: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relays with them would share the events out between those places, and are to report each other."""
    monkeypatch.setenv(VARIABLE, WRITTEN)
    first, again, second = (connect_sink(url) for url in (one, one, other))
    assert first.name == again.name == second.name
    identities = [getattr(sink, "identity", sink.name) for sink in (first, again, second)]
    assert identities[0] == identities[1] != identities[2]


@pytest.mark.parametrize(
    "secret", ["", " ", "whsec_c2hvcnQ=", "whsec_%%%", f"{WRITTEN} whsec_c2hvcnQ=", " ".join([WRITTEN] * 3)]
)
def test_a_webhook_without_a_good_secret_is_refused(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, secret)
    with pytest.raises(UrlError, match=VARIABLE):
        connect_sink("https://shop.example/hooks")


def test_a_missing_client_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "aiokafka", None)
    monkeypatch.delitem(__import__("sys").modules, "semel.outbox.sinks.kafka", raising=False)
    with pytest.raises(ConfigurationError, match=re.escape(install_command("kafka"))):
        connect_sink("kafka://h:1")


def deliver(given: Event) -> None:
    if given.topic == "bad":
        raise ValueError("no")
    os.environ.setdefault("SEMEL_TEST_DELIVERED", given.id)


def test_a_function_is_a_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEMEL_TEST_DELIVERED", raising=False)

    async def story() -> None:
        async with sink_of(f"python:{__name__}:deliver") as sink:
            good = event("good")
            replies = await sink.publish([good, event("bad")])
            assert replies[0] is None
            assert_refused(replies[1], "ValueError: no")
            assert os.environ["SEMEL_TEST_DELIVERED"] == good.id

    run_story(story)
    monkeypatch.delenv("SEMEL_TEST_DELIVERED", raising=False)
