"""RabbitMQ, through aio-pika."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

from semel.errors import ConfigurationError
from semel.inbox.brokers.delivery import EVENT_ID, RetryingConsumer, find_id


class RabbitConsumer(RetryingConsumer):
    """Handles each message of a queue once: ``await queue.consume(RabbitConsumer(inbox, handler))``.

    Messages need an id: the ``message_id`` property, which Semel's relays set. Quorum queues count deliveries, so that
    a message that kills its workers is parked, too. They also drop a message after too many deliveries (20 by default):
    keep ``tries_max`` well below that. For the same reason, while the store is unreachable or another worker handles a
    message, this consumer does not return it but retries it itself every ``retry_seconds``. Other parameters are those
    of :class:`~semel.inbox.brokers.nats.JetStreamConsumer`; ``delivery`` is aio-pika's message.
    """

    def broker_id_of(self, delivery: Any) -> str:
        """Return a message's id if no ``id_of`` is given."""
        return message_id(delivery)

    async def __call__(self, delivery: Any) -> None:
        """Handle one delivery: acknowledge it, or return it to its queue."""
        counted = int((delivery.headers or {}).get("x-delivery-count", 0)) + 1
        id, unnamed = find_id(self._id_of, delivery, _name_of)
        while (ended := await self._deliveries.take(id, delivery, counted, unnamed)) is None:
            counted = 1  # as take() says
            await asyncio.sleep(self._retry_seconds)
        if ended:
            await delivery.ack()
        else:
            await delivery.nack(requeue=True)


def message_id(delivery: Any) -> str:
    """Return the publisher's id. Raises ConfigurationError if there is none."""
    given = _given_id(delivery)
    if not given:
        raise ConfigurationError(
            "a RabbitMQ message has no message_id: let its publisher set it, or use RabbitConsumer(..., id_of=...)"
        )
    return str(given)


def _given_id(delivery: Any) -> object:
    return delivery.message_id or (delivery.headers or {}).get(EVENT_ID)


def _name_of(delivery: Any) -> str:
    """Return a digest to count and park a message without an id: a queue gives it no place."""
    given = _given_id(delivery)
    if given:
        return str(given)
    # The broker's own headers have this prefix, and change with each delivery.
    headers = sorted((name, str(value)) for name, value in (delivery.headers or {}).items() if name[:2] != "x-")
    described = repr((delivery.routing_key, headers)).encode()
    return f"sha256:{sha256(described + delivery.body).hexdigest()}"
