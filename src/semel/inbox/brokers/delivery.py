"""One delivery of any broker on its way through an inbox."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from semel.errors import HandlerRefused, StoreError, is_wrong_for_all
from semel.inbox.run import AsyncInbox, Message, await_over
from semel.inbox.store import MESSAGE_ID_MAX, Receipt
from semel.telemetry import field

EVENT_ID: Final = "semel-id"  # the header or field in which a relay of Semel's names its event
_LOG: Final = logging.getLogger("semel.consumers")

Handler = Callable[[Message, Any], Awaitable[object]]
"""What handles a message: it gets the inbox's Message, with the connection to write on, and the broker's delivery."""


class Deliveries:
    """Takes deliveries for one inbox. ``failed`` is called with each exception that is not the last of its message."""

    def __init__(
        self, inbox: AsyncInbox, handler: Handler, failed: Callable[[str, Exception], object] | None = None
    ) -> None:
        self._inbox = inbox
        self._handler = handler
        self._failed = failed if failed is not None else log_failed

    async def take(
        self, message_id: str, delivery: Any, deliveries: int, unnamed: Exception | None = None
    ) -> bool | None:
        """Handle one delivery; return whether to acknowledge it.

        None: not yet, without a fault of the message: the store is unavailable, or another worker handles it. If this
        worker itself retries, it must pass a first delivery: otherwise the inbox would count each retry.

        Parameters: ``unnamed`` is the reason why the message has no id (:func:`find_id`): the delivery fails with it.

        Raises ConfigurationError if every message would fail in this way.
        """

        async def handle(message: Message) -> None:
            if unnamed is not None:
                raise unnamed
            await await_over(self._handler(message, delivery))

        try:
            receipt = await self._inbox.handle(fitting(message_id), handle, deliveries=deliveries)
        except Exception as error:  # counted by the inbox; the broker delivers it again
            if is_wrong_for_all(error):
                raise
            self._failed(message_id, error)
            of_the_store = isinstance(error, StoreError) and not isinstance(error, HandlerRefused)
            return None if of_the_store else False
        if receipt is Receipt.BUSY:
            log_busy(message_id)
            return None
        return True


class RetryingConsumer:
    """A consumer that retries failed messages, or has its broker redeliver them.

    Parameters: ``handler(message, delivery)`` gets the inbox's message and the broker's; ``retry_seconds`` before a
    failed message is retried; ``id_of`` finds a message's id, by default the publisher's; ``failed`` as in Deliveries.
    """

    def __init__(
        self,
        inbox: AsyncInbox,
        handler: Handler,
        *,
        retry_seconds: float = 1.0,
        id_of: Callable[[Any], str] | None = None,
        failed: Callable[[str, Exception], object] | None = None,
    ) -> None:
        self._deliveries = Deliveries(inbox, handler, failed)
        self._retry_seconds = retry_seconds
        self._id_of = id_of if id_of is not None else self.broker_id_of

    def broker_id_of(self, delivery: Any) -> str:
        """Return a message's id if there is no ``id_of``."""
        raise NotImplementedError


def find_id(
    id_of: Callable[[Any], object], delivery: Any, place_of: Callable[[Any], str]
) -> tuple[str, Exception | None]:
    """Return a delivery's id. Without one, return its place, under which it is counted and parked, and the reason.

    >>> find_id(lambda delivery: delivery["order"], {"at": 7}, lambda delivery: f"orders:{delivery['at']}")
    ('orders:7', KeyError('order'))
    """
    try:
        id = id_of(delivery)
        if not isinstance(id, str) or not id:
            raise ValueError(f"id_of= found no id in the message, but {id!r}")
    except Exception as error:  # otherwise any publisher could end the consumer
        if is_wrong_for_all(error):
            raise
        return place_of(delivery), error
    return id, None


def text_of(raw: bytes) -> str:
    """Decode an id from bytes; different bytes always give different texts."""
    return raw.decode(errors="surrogateescape")


def fitting(message_id: str) -> str:
    """Return an id that inboxes accept: the digest of one that is too long, or that a database cannot store.

    >>> fitting("order-10-placed"), fitting("x" * 501)[:15]
    ('order-10-placed', 'sha256:3ac31d30')
    """
    if len(message_id) <= MESSAGE_ID_MAX and not any("\ud800" <= letter <= "\udfff" for letter in message_id):
        return message_id
    return f"sha256:{hashlib.sha256(message_id.encode(errors='surrogatepass')).hexdigest()}"


def log_busy(message_id: str) -> None:
    """Log a concurrent duplicate: nothing failed, and no action is needed."""
    _LOG.info("message %s is being handled by another worker; it is tried again later", field(message_id))


def log_failed(message_id: str, error: Exception) -> None:
    """Log a failed try; the next one may succeed."""
    _LOG.warning("message %s failed (%s); it is delivered again", field(message_id), type(error).__name__)
