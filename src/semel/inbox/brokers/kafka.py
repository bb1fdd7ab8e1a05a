"""Kafka and other brokers with its protocol, through aiokafka."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from semel.errors import ConfigurationError
from semel.extras import install_command
from semel.inbox.brokers.delivery import EVENT_ID, RetryingConsumer, find_id, text_of
from semel.telemetry import field

try:
    from aiokafka.errors import CommitFailedError, IllegalStateError
except ModuleNotFoundError as missing:
    raise ConfigurationError(f"an inbox on Kafka needs aiokafka; install it: {install_command('kafka')}") from missing

_LOG: Final = logging.getLogger("semel.consumers")


class KafkaConsumer(RetryingConsumer):
    """Handles each record of a consumer's partitions once, in their order.

    Kafka redelivers nothing: the consumer retries a failed record itself, ``retry_seconds`` later, before later
    records, until it is handled or parked. ``client`` is an ``AIOKafkaConsumer`` with ``enable_auto_commit=False``;
    ``delivery`` its record.
    """

    def broker_id_of(self, delivery: Any) -> str:
        """Return a record's id if no ``id_of`` is given."""
        return message_id(delivery)

    async def take(self, record: Any) -> None:
        """Handle one record, until it is handled or parked."""
        id, unnamed = find_id(self._id_of, record, message_id)
        while not await self._deliveries.take(id, record, 1, unnamed):  # noqa: ASYNC110 - a store has no event to wait for
            await asyncio.sleep(self._retry_seconds)

    async def serve(self, client: Any) -> None:
        """Handle records until cancelled; commit each record's offset when it is finished.

        If the partition has moved to another member meanwhile, that member gets the record again, as a duplicate.

        Raises ConfigurationError if the client commits by itself: it would commit unhandled records.
        """
        if getattr(client, "_enable_auto_commit", False):
            raise ConfigurationError(
                "the client commits offsets by itself, and a worker that dies would lose the record that it is at: "
                "create it with AIOKafkaConsumer(..., enable_auto_commit=False)"
            )
        async for record in client:
            await self.take(record)
            try:
                await client.commit()
            except (CommitFailedError, IllegalStateError):  # the client rejoins its group, and reads on from there
                place = f"{record.topic}:{record.partition}:{record.offset}"
                _LOG.warning(
                    "record %s was handled, and its offset not committed, because its group has rebalanced; it is "
                    "delivered again",
                    field(place),
                )


def message_id(record: Any) -> str:
    """Return the publisher's id, else the record's place in the log."""
    given = dict(record.headers or ()).get(EVENT_ID)
    return text_of(given) if given else f"{record.topic}:{record.partition}:{record.offset}"
