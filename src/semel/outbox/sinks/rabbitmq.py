"""RabbitMQ, through aio-pika, the maintained asyncio client.

Every message is persistent, mandatory and confirmed: it has arrived once the broker confirms that it is in a queue (for
a quorum queue, on a majority of nodes). The broker returns a message that no queue takes. The topic is the routing key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import SplitResult

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange
from aio_pika.exceptions import (
    AMQPError,
    ChannelInvalidStateError,
    ChannelNotFoundEntity,
    DeliveryError,
    PublishError,
)

from semel.errors import UrlError
from semel.outbox.event import Event
from semel.outbox.sinks.base import Refused, Reply, Unreached, error_text, message_headers
from semel.stores.backend import hide_password

CONFIRM_SECONDS: Final = 10.0
CONNECT_SECONDS: Final = 5.0
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024  # what RabbitMQ 4 takes by default; before, it was 128 MiB
SHORT_BYTES_MAX: Final = 255  # of AMQP's short strings
_GONE: Final = (AMQPError, OSError, TimeoutError, ChannelInvalidStateError)


class RabbitmqSink:
    """Publishes to an exchange of a RabbitMQ.

    Parameters: ``url`` amqp:// or amqps://; ``exchange`` its name, empty for the default exchange; ``quorum`` whether
    to declare a durable quorum queue with the topic's name before a topic's first event.
    """

    def __init__(self, url: str, *, exchange: str = "", quorum: bool = False) -> None:
        self.name = hide_password(url)
        self.identity = f"{self.name} {exchange}"
        self._url = url
        self._exchange_name = exchange
        self._quorum = quorum
        self._declared: set[str] = set()
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._exchange: AbstractExchange | None = None

    async def _connect(self) -> AbstractExchange:
        exchange, channel, connection = self._exchange, self._channel, self._connection
        if exchange is not None and channel is not None and not channel.is_closed and not _is_closed(connection):
            return exchange
        await self.close()
        self._connection = await aio_pika.connect(self._url, timeout=CONNECT_SECONDS)
        self._channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
        if self._exchange_name:
            exchange = await self._channel.get_exchange(self._exchange_name, ensure=True)
        else:
            exchange = self._channel.default_exchange
        self._exchange = exchange
        return exchange

    async def publish(self, events: Sequence[Event]) -> list[Reply]:
        """Send all events, then wait for their confirmations."""
        try:
            exchange = await self._connect()
            for event in events:
                await self._declare(event.topic)
        except ChannelNotFoundEntity as error:
            return [Unreached(f"there is no exchange {self._exchange_name!r}; declare it ({error_text(error)})")] * len(
                events
            )
        except _GONE as error:
            return [Unreached(error_text(error))] * len(events)
        return list(await asyncio.gather(*(self._send(exchange, event) for event in events)))

    async def _declare(self, topic: str) -> None:
        if self._quorum and topic not in self._declared:
            assert self._channel is not None
            await self._channel.declare_queue(topic, durable=True, arguments={"x-queue-type": "quorum"})
            self._declared.add(topic)

    async def _send(self, exchange: AbstractExchange, event: Event) -> Reply:
        headers: dict[str, Any] = dict(message_headers(event))
        if len(event.payload) > MESSAGE_BYTES_MAX:
            return Refused(f"the event has {len(event.payload)} bytes, and RabbitMQ takes {MESSAGE_BYTES_MAX}", True)
        message = aio_pika.Message(
            event.payload,
            headers=headers,
            message_id=event.id,
            type=event.type.encode()[:SHORT_BYTES_MAX].decode(errors="ignore"),  # whole letters; all is in semel-type
            content_type=headers["content-type"],
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        try:
            await exchange.publish(message, routing_key=event.topic, mandatory=True, timeout=CONFIRM_SECONDS)
        except PublishError:
            where = f"the exchange {self._exchange_name!r} " if self._exchange_name else ""
            return Refused(f"{where}has no queue for the routing key {event.topic!r}; declare and bind one".lstrip())
        except DeliveryError:  # a queue is full or has failed: the event is not at fault
            return Unreached(
                f"RabbitMQ currently has no queue for the routing key {event.topic!r} now, and says no more"
            )
        except _GONE as error:
            return Unreached(error_text(error))
        return None

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        self._channel = self._exchange = None
        self._declared.clear()
        if connection is not None:
            with suppress(*_GONE, asyncio.CancelledError):
                await connection.close()


def _is_closed(connection: AbstractConnection | None) -> bool:
    return connection is None or connection.is_closed


def rabbitmq_sink(url: SplitResult, options: dict[str, str]) -> RabbitmqSink:
    """The sink of ``amqp://USER:PASSWORD@HOST:5672/VHOST?exchange=NAME&declare=quorum`` (``amqps://`` with TLS)."""
    declare = options.pop("declare", None)
    exchange = options.pop("exchange", "")
    if declare not in (None, "quorum"):
        raise UrlError(f"declare= is quorum or absent; it is {declare!r}")
    if declare and exchange:
        raise UrlError(
            "declare=quorum is for the default exchange, where a queue has its name as its key; leave one out"
        )
    return RabbitmqSink(url._replace(query="").geturl(), exchange=exchange, quorum=declare == "quorum")
