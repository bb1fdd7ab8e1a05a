"""NATS JetStream, through nats-py's pull subscriptions."""

from __future__ import annotations

import asyncio
from typing import Any

from semel.inbox.brokers.delivery import EVENT_ID, RetryingConsumer, find_id


class JetStreamConsumer(RetryingConsumer):
    """Handles each message of a JetStream consumer once.

    Parameters: ``handler(message, delivery)`` gets the inbox's message and nats-py's ``Msg``; ``retry_seconds`` before
    a failed message is redelivered; ``id_of`` finds a message's id, by default ``Nats-Msg-Id``, else stream and
    sequence.

    JetStream gives up a message after ``max_deliver`` deliveries, if its consumer sets that: set it well above the
    inbox's ``tries_max``. For the same reason, while the store is unavailable or another worker handles a message, this
    consumer does not return it but retries it itself every ``retry_seconds``, and JetStream waits meanwhile.

        subscription = await jetstream.pull_subscribe("orders.>", durable="billing")
        await JetStreamConsumer(inbox, handler).serve(subscription)
    """

    def broker_id_of(self, delivery: Any) -> str:
        """Return a message's id if no ``id_of`` is given."""
        return message_id(delivery)

    async def take(self, delivery: Any) -> None:
        """Handle one delivery: acknowledge it, or return it to the stream."""
        id, unnamed = find_id(self._id_of, delivery, message_id)
        counted = delivery.metadata.num_delivered
        while (ended := await self._deliveries.take(id, delivery, counted, unnamed)) is None:
            counted = 1  # as take() says
            await delivery.in_progress()
            await asyncio.sleep(self._retry_seconds)
        if ended:
            await delivery.ack()
        else:
            await delivery.nak(delay=self._retry_seconds)

    async def serve(self, subscription: Any, *, batch: int = 10, wait_seconds: float = 5.0) -> None:
        """Handle messages one by one until cancelled; unacknowledged ones are redelivered."""
        while True:
            try:
                fetched = await subscription.fetch(batch, timeout=wait_seconds)
            except TimeoutError:
                continue
            for delivery in fetched:
                await self.take(delivery)


def message_id(delivery: Any) -> str:
    """Return the publisher's id, else the message's place in the stream."""
    headers = delivery.headers or {}
    given = headers.get("Nats-Msg-Id") or headers.get(EVENT_ID)
    seen = delivery.metadata
    return str(given) if given else f"{seen.stream}:{seen.sequence.stream}"
