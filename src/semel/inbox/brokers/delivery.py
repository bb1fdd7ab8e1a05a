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
        """Handle one delivery; whether to acknowledge it.

        None: not yet, and that is not the message's fault: the store is unavailable, or another worker handles it. This
        worker is alive: where it tries again itself, that is a first delivery, or the inbox would count each try.

        Parameters: ``unnamed`` is the reason that ``message_id`` is not the one wanted (:func:`find_id`): the delivery
        fails by it.

        Raises ConfigurationError: every message would fail so.
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
    """A consumer that tries again what failed, or has its broker deliver it again.

    Parameters: ``handler(message, delivery)`` gets the inbox's message and the broker's; ``retry_seconds`` before what
    failed is tried again; ``id_of`` finds a message's id, otherwise its publisher's; ``failed`` as of Deliveries.
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
        """The id that a message has without ``id_of``."""
        raise NotImplementedError


def find_id(
    id_of: Callable[[Any], object], delivery: Any, place_of: Callable[[Any], str]
) -> tuple[str, Exception | None]:
    """A delivery's id, or its place and the reason that it has no id: it is counted, and parked, under that name.

    >>> find_id(lambda delivery: delivery["order"], {"at": 7}, lambda delivery: f"orders:{delivery['at']}")
    ('orders:7', KeyError('order'))
    """
    try:
        id = id_of(delivery)
        if not isinstance(id, str) or not id:
            raise ValueError(f"id_of= found no id in the message, but {id!r}")
    except Exception as error:  # any publisher could end the consumer otherwise
        if is_wrong_for_all(error):
            raise
        return place_of(delivery), error
    return id, None


def text_of(raw: bytes) -> str:
    """An id that came as bytes; other bytes are always another text."""
    return raw.decode(errors="surrogateescape")


def fitting(message_id: str) -> str:
    """The id as inboxes take it: one that is too long, or no text for a database, by its digest.

    >>> fitting("order-10-placed"), fitting("x" * 501)[:15]
    ('order-10-placed', 'sha256:3ac31d30')
    """
    if len(message_id) <= MESSAGE_ID_MAX and not any("\ud800" <= letter <= "\udfff" for letter in message_id):
        return message_id
    return f"sha256:{hashlib.sha256(message_id.encode(errors='surrogatepass')).hexdigest()}"


def log_busy(message_id: str) -> None:
    """A concurrent duplicate: nothing failed, and no action is needed."""
    _LOG.info("message %s is being handled by another worker; it is tried again later", field(message_id))


def log_failed(message_id: str, error: Exception) -> None:
    """A try that came to nothing; the next one may fare better."""
    _LOG.warning("message %s failed (%s); it is delivered again", field(message_id), type(error).__name__)
