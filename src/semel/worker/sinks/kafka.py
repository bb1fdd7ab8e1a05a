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
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    UnknownTopicOrPartitionError,
)

from semel.errors import UrlError
from semel.events import Event
from semel.worker.sinks.base import Refused, Reply, Unreached, message_headers, told

REQUEST_MS: Final = 5000
TOPIC_SECONDS: Final = 3.0
ACK_SECONDS: Final = 10.0
MESSAGE_BYTES_MAX: Final = 1_048_576


class KafkaSink:
    """Publishes to topics of a Kafka cluster.

    Parameters: ``servers`` HOST:PORT, joined by commas; ``idempotence`` False for brokers that know no idempotent
    producers: then a lost answer may write an event twice in a partition (under its one id).
    """

    def __init__(self, servers: str, *, idempotence: bool = True) -> None:
        self.name = f"kafka://{servers}"
        self._servers = servers
        self._idempotence = idempotence
        self._producer: Any = None
        self._topics: set[str] = set()

    async def _started(self) -> Any:
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
        """All at once; then their acknowledgements."""
        try:
            producer = await self._started()
        except (KafkaError, OSError, TimeoutError) as error:
            return [Unreached(told(error))] * len(events)
        sent = [await self._send(producer, event) for event in events]
        futures = [each for each in sent if isinstance(each, asyncio.Future)]
        if futures:
            await asyncio.wait(futures, timeout=ACK_SECONDS)
        replies = [self._reply(each, event) for each, event in zip(sent, events, strict=True)]
        if any(isinstance(reply, Unreached) for reply in replies):
            await self.close()
        return replies

    async def _send(self, producer: Any, event: Event) -> asyncio.Future[Any] | Refused | Unreached:
        if not await self._has(producer, event.topic):
            return Refused(f"there is no topic {event.topic!r}; make it on the broker")
        headers = [(name, value.encode()) for name, value in message_headers(event).items()]
        try:
            future: asyncio.Future[Any] = await producer.send(
                event.topic, event.payload, key=event.aggregate_id.encode(), headers=headers
            )
        except MessageSizeTooLargeError as error:
            return Refused(told(error), True)
        except (UnknownTopicOrPartitionError, KafkaTimeoutError) as error:
            return Refused(told(error))
        except (KafkaError, OSError) as error:
            return Unreached(told(error))
        return future

    async def _has(self, producer: Any, topic: str) -> bool:
        """Whether the topic exists: the client would otherwise look for it until its own time is over."""
        if topic in self._topics:
            return True
        try:
            found = await asyncio.wait_for(producer.partitions_for(topic), TOPIC_SECONDS)
        except (KafkaError, OSError, TimeoutError):
            return False
        if found:
            self._topics.add(topic)
        return bool(found)

    def _reply(self, sent: asyncio.Future[Any] | Refused | Unreached, event: Event) -> Reply:
        if not isinstance(sent, asyncio.Future):
            return sent
        if not sent.done():
            return Unreached(f"no acknowledgement within {ACK_SECONDS:g} seconds")
        error = None if sent.cancelled() else sent.exception()
        if sent.cancelled():
            return Unreached("the producer was closed")
        if error is None:
            return None
        if isinstance(error, MessageSizeTooLargeError):
            return Refused(told(error), True)
        if isinstance(error, UnknownTopicOrPartitionError):
            self._topics.discard(event.topic)
            return Refused(told(error))
        if isinstance(error, (KafkaConnectionError, KafkaTimeoutError)) or getattr(error, "retriable", False):
            return Unreached(told(error))
        return Refused(told(error))

    async def close(self) -> None:
        """Close the producer."""
        producer, self._producer = self._producer, None
        self._topics.clear()
        if producer is not None:
            with suppress(KafkaError, OSError, TimeoutError):
                await asyncio.wait_for(producer.stop(), REQUEST_MS / 1000)


def kafka_sink(url: SplitResult, options: dict[str, str]) -> KafkaSink:
    """The sink of ``kafka://HOST:9092,HOST:9092?idempotence=no``."""
    if not url.netloc or "@" in url.netloc:
        raise UrlError(
            "kafka:// takes HOST:PORT, joined by commas, and no account: give TLS and SASL in code (KafkaSink)"
        )
    idempotence = options.pop("idempotence", "yes")
    if idempotence not in ("yes", "no"):
        raise UrlError(f"idempotence= is yes or no; it is {idempotence!r}")
    return KafkaSink(url.netloc, idempotence=idempotence == "yes")
