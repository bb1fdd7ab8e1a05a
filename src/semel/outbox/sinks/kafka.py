"""Brokers that speak Kafka's protocol, through aiokafka, which needs no C library.

The producer is idempotent and waits for all replicas in sync (``acks=all``). The key is the aggregate's id, so that its
events are in one partition, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import SplitResult

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    ProducerClosed,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.metadata import MetadataRequest

from semel.errors import UrlError
from semel.outbox.event import Event
from semel.outbox.sinks.base import Refused, Reply, Unreached, error_text, message_headers

REQUEST_MS: Final = 5000
ACK_SECONDS: Final = 10.0
MESSAGE_BYTES_MAX: Final = 1_048_576
# Errors caused by the event or its topic. All others are the cluster's, which may be unavailable for days.
_REFUSALS: Final = (
    InvalidTopicError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)


class KafkaSink:
    """Publishes to topics of a Kafka cluster.

    Parameters: ``servers`` HOST:PORT, joined by commas; ``idempotence`` False for brokers without idempotent producers:
    then a lost answer may write an event twice in a partition (under one id).
    """

    def __init__(self, servers: str, *, idempotence: bool = True) -> None:
        self.name = f"kafka://{servers}"
        self._servers = servers
        self._idempotence = idempotence
        self._producer: Any = None
        self._topics: set[str] = set()

    async def _start(self) -> Any:
        if self._producer is None:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._servers,
                acks="all",
                enable_idempotence=self._idempotence,
                request_timeout_ms=REQUEST_MS,
                max_request_size=MESSAGE_BYTES_MAX,
                client_id="semel-relay",
            )
            try:
                await producer.start()
            except BaseException:
                await producer.stop()
                raise
            self._producer = producer
        return self._producer

    async def publish(self, events: Sequence[Event]) -> list[Reply]:
        """Send all events, then wait for their acknowledgements."""
        try:
            producer = await self._start()
            missing = await self._missing(producer, {event.topic for event in events})
        except (KafkaError, OSError, TimeoutError) as error:  # no answer for these events
            await self._abandon()
            return [Unreached(error_text(error))] * len(events)
        sent = [missing.get(event.topic) or await self._send(producer, event) for event in events]
        futures = [each for each in sent if isinstance(each, asyncio.Future)]
        if futures:
            await asyncio.wait(futures, timeout=ACK_SECONDS)
        replies = [self._reply(each, event) for each, event in zip(sent, events, strict=True)]
        if any(isinstance(reply, Unreached) for reply in replies):
            await self._abandon()
        return replies

    async def _send(self, producer: Any, event: Event) -> asyncio.Future[Any] | Refused | Unreached:
        headers = [(name, value.encode()) for name, value in message_headers(event).items()]
        try:
            future: asyncio.Future[Any] = await producer.send(
                event.topic, event.payload, key=event.aggregate_id.encode(), headers=headers
            )
        except (KafkaError, OSError) as error:
            return self._meaning(error, event)
        return future

    async def _missing(self, producer: Any, topics: set[str]) -> dict[str, Refused | Unreached]:
        """Return the error for topics that cannot be written to: the client would look for each until its timeout.

        Raises KafkaError, OSError, TimeoutError if the cluster does not answer.
        """
        asked = sorted(topics - self._topics)
        if not asked:
            return {}
        node = producer.client.get_random_node()
        said = await asyncio.wait_for(producer.client.send(node, MetadataRequest(asked)), REQUEST_MS / 1000)
        missing: dict[str, Refused | Unreached] = {}
        for code, topic, *_ in said.topics:
            if code == 0:
                self._topics.add(topic)
            elif code == UnknownTopicOrPartitionError.errno:
                missing[topic] = Refused(f"there is no topic {topic!r}; make it on the broker")
            else:
                reason = f"the topic {topic!r}: {error_text(for_code(code)())}"
                missing[topic] = Refused(reason) if issubclass(for_code(code), _REFUSALS) else Unreached(reason)
        return missing

    def _reply(self, sent: asyncio.Future[Any] | Refused | Unreached, event: Event) -> Reply:
        if not isinstance(sent, asyncio.Future):
            return sent
        if not sent.done():
            return Unreached(f"no acknowledgement within {ACK_SECONDS:g} seconds")
        error = None if sent.cancelled() else sent.exception()
        if sent.cancelled():
            return Unreached("the producer was closed")
        return None if error is None else self._meaning(error, event)

    def _meaning(self, error: BaseException, event: Event) -> Refused | Unreached:
        if isinstance(error, UnknownTopicOrPartitionError):
            self._topics.discard(event.topic)
        if isinstance(error, _REFUSALS):
            return Refused(error_text(error), isinstance(error, MessageSizeTooLargeError))
        return Unreached(error_text(error))

    async def close(self) -> None:
        """Close the producer."""
        producer, self._producer = self._producer, None
        self._topics.clear()
        if producer is not None:
            try:
                await asyncio.wait_for(producer.stop(), REQUEST_MS / 1000)
            except (KafkaError, OSError, TimeoutError):
                await _end(producer)

    async def _abandon(self) -> None:
        """Abandon a producer: it would resend events that the relay resends, too."""
        producer, self._producer = self._producer, None
        self._topics.clear()
        if producer is not None:
            await _end(producer)


async def _end(producer: Any) -> None:
    """End the producer's task and connections: aiokafka's stop() leaves both running if it is abandoned (0.14)."""
    producer._closed = True  # otherwise it would warn when it is garbage-collected
    with suppress(KafkaError, OSError, TimeoutError):
        await asyncio.wait_for(producer._sender.close(), REQUEST_MS / 1000)
    producer._message_accumulator.fail_all(ProducerClosed())  # so that no caller waits for an event that is never sent
    with suppress(KafkaError, OSError, TimeoutError):
        await producer.client.close()


def kafka_sink(url: SplitResult, options: dict[str, str]) -> KafkaSink:
    """Return the sink of ``kafka://HOST:9092,HOST:9092?idempotence=no``."""
    if not url.netloc or "@" in url.netloc:
        raise UrlError(
            "kafka:// takes HOST:PORT, joined by commas, and no account: give TLS and SASL in code (KafkaSink)"
        )
    idempotence = options.pop("idempotence", "yes")
    if idempotence not in ("yes", "no"):
        raise UrlError(f"idempotence= is yes or no; it is {idempotence!r}")
    return KafkaSink(url.netloc, idempotence=idempotence == "yes")
