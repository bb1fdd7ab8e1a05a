"""Consumers that pull batches under a lease: what SQS and Pub/Sub have in common.

The broker leases each message for a time. While its handler runs, and while it waits for others of its batch, the
consumer extends the lease; then it acknowledges the message, or returns it for a while. The clients block: their calls
run in threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Generic, TypeVar

from semel.errors import PolicyError
from semel.inbox.brokers.delivery import Deliveries, Handler, find_id
from semel.inbox.run import AsyncInbox
from semel.workers.trouble import Trouble

D = TypeVar("D")
LOG: Final = logging.getLogger("semel.consumers")


class PulledConsumer(Generic[D]):
    """Handles each message of a queue or subscription once. Subclasses call the broker.

    Parameters: ``source`` the queue's or subscription's name for people; ``lease_seconds`` for which a message is
    leased; ``retry_seconds`` before a failed message is redelivered, doubled with each delivery up to
    ``retry_seconds_max``.
    """

    BATCH_MAX: int
    LEASE_SECONDS_MAX: int
    LEASE_NAME: str  # the option's name for the broker's users
    AWAY: tuple[type[Exception], ...]  # the client's errors

    def __init__(
        self,
        inbox: AsyncInbox,
        handler: Handler,
        source: str,
        *,
        lease_seconds: int,
        retry_seconds: float,
        retry_seconds_max: float,
        id_of: Callable[[D], str],
        failed: Callable[[str, Exception], object] | None,
    ) -> None:
        most = self.LEASE_SECONDS_MAX
        check_whole(self.LEASE_NAME, lease_seconds, 1, most)
        for name, seconds in (("retry_seconds", retry_seconds), ("retry_seconds_max", retry_seconds_max)):
            if type(seconds) not in (int, float) or not 0 <= seconds <= most:
                raise PolicyError(f"{name} must be seconds from 0 to {most}; it is {seconds!r}")

        self.source = source
        self._deliveries = Deliveries(inbox, handler, failed)
        self._lease = lease_seconds
        self._retry_seconds = retry_seconds
        self._retry_seconds_max = retry_seconds_max
        self._id_of = id_of
        self._stopping = asyncio.Event()

    # --- each broker's own part; the first three methods are called in threads ----------------------

    def fetch(self, batch: int, wait_seconds: int) -> list[D]:
        """Receive a batch. Raises ConfigurationError for problems that a person must fix, and the client's errors."""
        raise NotImplementedError

    def lend(self, seconds: Mapping[str, int]) -> Collection[str]:
        """Set the messages' lease from now on; return the handles that the broker refused."""
        raise NotImplementedError

    def acknowledge(self, handles: Sequence[str]) -> object:
        """Acknowledge messages. A lost acknowledgement leads to a redelivery."""
        raise NotImplementedError

    def handle_of(self, delivery: D) -> str:
        """Return the broker's handle of this delivery."""
        raise NotImplementedError

    def broker_id_of(self, delivery: D) -> str:
        """Return the broker's own id of the message."""
        raise NotImplementedError

    def deliveries_of(self, delivery: D) -> int:
        """Return the number of deliveries, as far as the broker reports it."""
        raise NotImplementedError

    def group_of(self, delivery: D) -> str | None:
        """Return the message's ordered group, if the broker has such groups."""
        raise NotImplementedError

    # --- the loop -------------------------------------------------------------------------------

    def stop(self) -> None:
        """End :meth:`serve` after the current message, and return the rest of its batch to the broker."""
        self._stopping.set()

    async def serve(self, *, batch: int = 10, wait_seconds: int = 10) -> None:
        """Handle messages one by one until :meth:`stop` or cancelled. Waits for an unavailable broker.

        Raises ConfigurationError if there is no such queue or subscription, or the broker refuses the credentials.
        """
        trouble = Trouble(f"the consumer of {self.source}")
        while not self._stopping.is_set():
            try:
                await self.turn(batch=batch, wait_seconds=wait_seconds)
                trouble.over()
            except self.AWAY as error:
                if trouble.errors == 0:
                    LOG.warning("%s cannot be read (%s); it is tried again", self.source, error)
                await rest(self._stopping, trouble.note_error(error, log=False))

    async def turn(self, *, batch: int = 10, wait_seconds: int = 10) -> int:
        """Receive once and handle the messages; returns their number.

        Parameters: ``batch`` messages at most; ``wait_seconds`` to wait for the first one (at most 20).

        Raises PolicyError, ConfigurationError, and the client's own errors if the broker is unavailable.
        """
        check_whole("batch", batch, 1, self.BATCH_MAX)
        check_whole("wait_seconds", wait_seconds, 0, 20)
        received = await self._receive(batch, wait_seconds)
        if received:
            await _Batch(self, received).handle()
        return len(received)

    async def _receive(self, batch: int, wait_seconds: int) -> list[D]:
        abandoned = threading.Event()

        def receive() -> list[D]:
            found = self.fetch(batch, wait_seconds)
            if found and abandoned.is_set():  # received for a cancelled caller
                self.lend({self.handle_of(each): 0 for each in found})
            return found

        try:
            return await asyncio.to_thread(receive)
        except asyncio.CancelledError:
            abandoned.set()
            raise

    def backoff(self, deliveries: int) -> int:
        """Return the whole seconds before a message that failed in this delivery is redelivered."""
        return round(min(self._retry_seconds_max, self._retry_seconds * 2.0 ** min(deliveries - 1, 40)))

    async def take(self, delivery: D) -> bool | None:
        """Handle one delivery; return whether to acknowledge it. None: the consumer was stopped first."""
        id, unnamed = find_id(self._id_of, delivery, self.broker_id_of)
        counted = self.deliveries_of(delivery)
        while True:
            ended = await self._deliveries.take(id, delivery, counted, unnamed)
            if ended is not None or self._stopping.is_set():
                return ended
            counted = 1  # as take() says
            await rest(self._stopping, self._retry_seconds)


class _Batch(Generic[D]):
    """The messages of one receive: a task hides them from other consumers, and acknowledges handled ones."""

    def __init__(self, consumer: PulledConsumer[D], received: Sequence[D]) -> None:
        self._consumer = consumer
        self._received = received
        self._ours = dict.fromkeys(consumer.handle_of(each) for each in received)  # in the order they came
        self._handled: list[str] = []
        self._ended = asyncio.Event()
        self._calls = asyncio.Lock()

    async def handle(self) -> None:
        keeper = asyncio.create_task(self._keep(), name="semel-lease")
        try:
            await self._take_all()
        finally:
            self._ended.set()
            await asyncio.wait({keeper})
            await self._settle(0)  # messages that were not begun may be redelivered at once

    async def _take_all(self) -> None:
        consumer = self._consumer
        held: dict[str, int] = {}  # ordered groups that wait for a redelivery, and the seconds until then
        for delivery in self._received:
            handle, group = consumer.handle_of(delivery), consumer.group_of(delivery)
            wait: int | None = None
            if group is not None and group in held:
                wait = held[group]
            elif not consumer._stopping.is_set() and handle in self._ours:
                ended = await consumer.take(delivery)
                if ended:
                    self._handled.append(handle)
                    continue
                if ended is False:
                    wait = consumer.backoff(consumer.deliveries_of(delivery))
            if group is not None:
                held.setdefault(group, wait or 0)
            if wait is not None:
                await self._give_back(handle, wait)

    async def _give_back(self, handle: str, wait: int) -> None:
        async with self._calls:
            if handle in self._ours:
                del self._ours[handle]
                await asyncio.to_thread(self._consumer.lend, {handle: wait})

    async def _keep(self) -> None:
        while not await rest(self._ended, self._consumer._lease / 3):
            try:
                await self._settle(self._consumer._lease)
            except Exception as error:  # noqa: BLE001 - the next one may succeed
                LOG.warning(
                    "%s: messages were not kept (%s); they may be delivered again", self._consumer.source, error
                )

    async def _settle(self, seconds: int) -> None:
        """Acknowledge handled messages, and extend the lease of the rest."""
        async with self._calls:
            handled = self._handled[:]
            if handled:
                del self._handled[:]
                for handle in handled:
                    self._ours.pop(handle, None)
                await asyncio.to_thread(self._consumer.acknowledge, handled)
            if self._ours:
                for handle in await asyncio.to_thread(self._consumer.lend, dict.fromkeys(self._ours, seconds)):
                    self._ours.pop(handle, None)  # its lease is over: the broker redelivers it, here or elsewhere


async def rest(until: asyncio.Event, seconds: float) -> bool:
    """Wait for an event for this many seconds; return whether it came."""
    try:
        await asyncio.wait_for(until.wait(), seconds)
    except TimeoutError:
        return until.is_set()
    return True


def check_whole(name: str, value: object, least: int, most: int) -> None:
    """Raise PolicyError unless a value is a whole number in a range."""
    if type(value) is not int or not least <= value <= most:
        raise PolicyError(f"{name} must be a whole number from {least} to {most}; it is {value!r}")
