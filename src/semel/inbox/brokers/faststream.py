"""FastStream's subscribers, through a middleware: ``NatsBroker(url, middlewares=[InboxMiddleware(inbox)])``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from semel.errors import ConfigurationError
from semel.extras import install_command
from semel.inbox.brokers.delivery import EVENT_ID, Deliveries, find_id, text_of
from semel.inbox.run import AsyncInbox, Message, Poison

try:
    from faststream import AckPolicy, BaseMiddleware
    from faststream.exceptions import AckMessage, HandlerException, NackMessage, RejectMessage
    from faststream.message import StreamMessage
except ModuleNotFoundError as missing:
    raise ConfigurationError(
        f"an inbox's subscribers need FastStream; install it: {install_command('faststream')}"
    ) from missing

_NAMES: Final = (EVENT_ID, "Nats-Msg-Id", "message_id")
_LOG: Final = logging.getLogger("semel.consumers")
_BATCHES: Final = ("bstream", "blist")  # of Redis
HELD_SECONDS: Final = 60.0  # between two reports of a subscriber that cannot handle anything
_LOST: Final = (AckPolicy.ACK_FIRST, AckPolicy.MANUAL)


class InboxMiddleware:
    """A middleware: subscribers handle each message once; ``Context("inbox")`` is the inbox's Message.

    FastStream acknowledges after the middleware, so after the commit (on Kafka only if you set
    ``ack_policy=AckPolicy.NACK_ON_ERROR``: without it the subscriber stops at its first message). A failed message is
    redelivered, whatever the policy says of errors, until the inbox parks it. A duplicate is acknowledged, and
    publishes nothing. A subscriber that raises RejectMessage parks its message; one that raises AckMessage has handled
    it.

    Parameters: ``retry_seconds`` before a message is redelivered (on NATS), or retried here if the store is unavailable
    or another worker handles it; ``id_of`` finds a message's id in FastStream's ``StreamMessage``. By default it is the
    publisher's id, else the place in a stream or log: FastStream invents a missing ``message_id``, and many messages
    may share one ``correlation_id``.

        broker = NatsBroker(url, middlewares=[InboxMiddleware(inbox)])

        @broker.subscriber("orders", stream="orders", durable="billing", pull_sub=True)
        async def bill(order: int, message: Annotated[Message, Context("inbox")]):
            message.connection.execute("INSERT INTO invoice VALUES (?)", (order,))
    """

    def __init__(
        self,
        inbox: AsyncInbox,
        *,
        retry_seconds: float = 1.0,
        id_of: Callable[[StreamMessage[Any]], str] | None = None,
        failed: Callable[[str, Exception], object] | None = None,
    ) -> None:
        self._inbox = inbox
        self._retry_seconds = retry_seconds
        self._id_of = id_of if id_of is not None else message_id
        self._failed = failed

    def __call__(self, msg: Any, /, *, context: Any) -> BaseMiddleware[Any, Any]:
        """Begin one message (FastStream's hook)."""
        return _Scope(msg, context=context, home=self)

    async def consume(self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any], context: Any) -> Any:
        """Handle one message: return its subscriber's result, or raise what FastStream acknowledges by."""
        results: list[Any] = []

        async def handler(message: Message, delivery: StreamMessage[Any]) -> None:
            with context.scope("inbox", message):
                try:
                    results[:] = [await call_next(delivery)]
                except AckMessage as done:
                    results[:] = [done]
                except RejectMessage as error:
                    raise Poison(str(error)) from error

        await _hold_if_acknowledged(context)
        deliveries = Deliveries(self._inbox, handler, self._failed)
        try:
            (id, unnamed), counted = find_id(self._id_of, msg, message_id), _count_deliveries(msg.raw_message)
            while (ended := await deliveries.take(id, msg, counted, unnamed)) is None:
                counted = 1  # as take() says
                if _is_of_jetstream(msg.raw_message):
                    await msg.raw_message.in_progress()  # the broker gives up messages that it delivers too often
                await asyncio.sleep(self._retry_seconds)
        except Exception:  # noqa: BLE001 - FastStream might give it up: it has no name, or none can be handled so
            _LOG.exception("a message cannot be handled so; it is delivered again")
            await asyncio.sleep(self._retry_seconds)
            ended = False
        if not ended:
            raise NackMessage(**({"delay": self._retry_seconds} if hasattr(msg.raw_message, "nak") else {}))
        if not results:  # it was handled before, or is parked
            raise AckMessage
        if isinstance(results[0], HandlerException):
            raise results[0]
        return results[0]


class _Scope(BaseMiddleware[Any, Any]):
    def __init__(self, msg: Any, /, *, context: Any, home: InboxMiddleware) -> None:
        super().__init__(msg, context=context)
        self._home = home

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]) -> Any:
        return await self._home.consume(call_next, msg, self.context)


def message_id(delivery: StreamMessage[Any]) -> str:
    """Return the publisher's id, else the message's place. Raises ConfigurationError if it has neither."""
    raw = delivery.raw_message
    if isinstance(raw, (list, tuple)) or (isinstance(raw, dict) and raw.get("type") in _BATCHES):
        # A redelivered batch may hold other messages after the same first one: they would count as handled.
        raise ConfigurationError("a batch has no single id: use batch=False, or InboxMiddleware(..., id_of=...)")
    given = next((delivery.headers[name] for name in _NAMES if delivery.headers.get(name)), None)
    given = given or getattr(raw, "message_id", None)  # of AMQP
    if given:
        return text_of(given) if isinstance(given, bytes) else str(given)
    if all(hasattr(raw, name) for name in ("topic", "partition", "offset")):  # of Kafka; methods in confluent's client
        return ":".join(str(each() if callable(each) else each) for each in (raw.topic, raw.partition, raw.offset))
    if _is_of_jetstream(raw):
        return f"{raw.metadata.stream}:{raw.metadata.sequence.stream}"
    if isinstance(raw, dict) and raw.get("message_ids"):  # of Redis Streams
        return f"{raw['channel']}:{text_of(raw['message_ids'][0])}"
    raise ConfigurationError(
        f"a message has neither an id nor a place: let its publisher set the header {EVENT_ID!r}, or use "
        "InboxMiddleware(..., id_of=...)"
    )


def _count_deliveries(raw: Any) -> int:
    """Return the number of deliveries, if the broker reports it."""
    if _is_of_jetstream(raw):
        return int(raw.metadata.num_delivered)
    headers = getattr(raw, "headers", None)
    return int(headers.get("x-delivery-count", 0)) + 1 if isinstance(headers, dict) else 1


def _is_of_jetstream(raw: Any) -> bool:
    return hasattr(raw, "nak") and raw.reply.startswith("$JS.ACK.")


async def _hold_if_acknowledged(context: Any) -> None:
    """Hold for ever a message that FastStream acknowledges before handling, or never: later ones would be lost, too."""
    policy = getattr(context.get_local("handler_"), "ack_policy", None)
    while policy in _LOST:
        _LOG.error(
            "ack_policy=%s does not acknowledge after the inbox: use ack_policy=AckPolicy.NACK_ON_ERROR; this "
            "subscriber handles no message until then",
            policy,
        )
        await asyncio.sleep(HELD_SECONDS)
