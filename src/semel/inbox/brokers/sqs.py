"""AWS SQS, through boto3, whose calls are made in threads."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from semel.engine.trouble import Trouble
from semel.errors import ConfigurationError, PolicyError
from semel.extras import install_command
from semel.inbox.brokers.delivery import EVENT_ID, Deliveries, Handler
from semel.inbox.run import AsyncInbox, Message

try:
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        ParamValidationError,
        PartialCredentialsError,
    )
except ModuleNotFoundError as missing:
    raise ConfigurationError(f"an inbox on SQS needs boto3; install it: {install_command('sqs')}") from missing

BATCH_MAX: Final = 10
POLL_SECONDS_MAX: Final = 20
VISIBILITY_SECONDS_MAX: Final = 43_200
ENCODING: Final = "semel-encoding"  # the attribute of a body that was no text
_MISSING: Final = frozenset(
    ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "InvalidAddress", "AWS.SimpleQueueService.404")
)
_FORBIDDEN: Final = frozenset(
    (
        *("AccessDenied", "AccessDeniedException", "AuthFailure", "ExpiredToken", "ExpiredTokenException"),
        *("InvalidClientTokenId", "InvalidSecurity", "MissingAuthenticationToken", "OptInRequired"),
        *("SignatureDoesNotMatch", "UnrecognizedClientException"),
    )
)
_LOG: Final = logging.getLogger("semel.consumers")

Delivery = dict[str, Any]


class _Named(NamedTuple):
    """A delivery, and why it has no id of its own."""

    delivery: Delivery
    unnamed: Exception | None


class SqsConsumer:
    """Handles each message of a queue once, standard or FIFO, and deletes it after its commit.

    Parameters: ``client`` boto3's ``client("sqs")``; ``queue`` the queue's URL; ``visibility_seconds`` (whole, up to
    43,200) for which SQS keeps a message from others: extended for as long as its handler runs, so it says how soon a
    dead worker's messages come again; ``retry_seconds`` before what failed is delivered again, doubled with each
    delivery up to ``retry_seconds_max``; ``id_of`` finds a message's id, otherwise the attribute ``semel-id``, else
    SQS's own ``MessageId`` (:func:`deduplication_id`, :func:`attribute` and :func:`body_member` find others);
    ``handler(message, delivery)`` gets the message as boto3 has it.

    While the store is away, or another worker is at a message, the message is kept and tried again here: its receives
    do not grow towards the queue's ``maxReceiveCount``. On a FIFO queue those of the same group behind a message that
    failed are given back.

        consumer = SqsConsumer(inbox, handler, boto3.client("sqs"), queue=url)
        await consumer.serve()

    Raises PolicyError for an option that cannot be.
    """

    def __init__(
        self,
        inbox: AsyncInbox,
        handler: Handler,
        client: Any,
        *,
        queue: str,
        visibility_seconds: int = 30,
        retry_seconds: float = 1.0,
        retry_seconds_max: float = 300.0,
        id_of: Callable[[Delivery], str] | None = None,
        failed: Callable[[str, Exception], object] | None = None,
    ) -> None:
        if not isinstance(queue, str) or not queue.startswith(("https://", "http://")):
            raise PolicyError(
                f"queue is the queue's URL, as client.get_queue_url(QueueName=…)['QueueUrl'] says it; it is {queue!r}"
            )
        check_whole("visibility_seconds", visibility_seconds, 1, VISIBILITY_SECONDS_MAX)
        for name, seconds in (("retry_seconds", retry_seconds), ("retry_seconds_max", retry_seconds_max)):
            if type(seconds) not in (int, float) or not 0 <= seconds <= VISIBILITY_SECONDS_MAX:
                raise PolicyError(f"{name} must be seconds from 0 to {VISIBILITY_SECONDS_MAX}; it is {seconds!r}")

        async def handle(message: Message, named: _Named) -> None:
            if named.unnamed is not None:
                raise named.unnamed
            await handler(message, named.delivery)

        self._deliveries = Deliveries(inbox, handle, failed)
        self._client = client
        self._queue = queue
        self._visibility = visibility_seconds
        self._retry_seconds = retry_seconds
        self._retry_seconds_max = retry_seconds_max
        self._id_of = id_of if id_of is not None else message_id
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End :meth:`serve` after the message that is being handled; the rest of its batch is given back."""
        self._stopping.set()

    async def serve(self, *, batch: int = 10, wait_seconds: int = 10) -> None:
        """Take what comes, one by one, until :meth:`stop` or cancelled. SQS's absence is waited for.

        Raises ConfigurationError where there is no such queue, or AWS refuses the credentials.
        """
        trouble = Trouble(f"the consumer of {self._queue}")
        self._stopping.clear()
        while not self._stopping.is_set():
            try:
                await self.turn(batch=batch, wait_seconds=wait_seconds)
                trouble.over()
            except (BotoCoreError, ClientError) as error:
                if trouble.errors == 0:
                    _LOG.warning("the queue %s cannot be read (%s); it is tried again", self._queue, error)
                await _rest(self._stopping, trouble.met(error, log=False))

    async def turn(self, *, batch: int = 10, wait_seconds: int = 10) -> int:
        """Receive once, handle what came; how many messages.

        Parameters: ``batch`` at most 10 messages; ``wait_seconds`` for which SQS waits for the first one (at most 20).

        Raises PolicyError, ConfigurationError, botocore's BotoCoreError and ClientError.
        """
        check_whole("batch", batch, 1, BATCH_MAX)
        check_whole("wait_seconds", wait_seconds, 0, POLL_SECONDS_MAX)
        received = await self._receive(batch, wait_seconds)
        if received:
            await _Batch(self, received).handle()
        return len(received)

    async def _receive(self, batch: int, wait_seconds: int) -> list[Delivery]:
        abandoned = threading.Event()

        def receive() -> list[Delivery]:
            answer = self._client.receive_message(
                QueueUrl=self._queue,
                MaxNumberOfMessages=batch,
                WaitTimeSeconds=wait_seconds,
                VisibilityTimeout=self._visibility,
                MessageSystemAttributeNames=["All"],
                MessageAttributeNames=["All"],
            )
            found: list[Delivery] = answer.get("Messages", [])
            if found and abandoned.is_set():  # received for a caller who is gone
                self._change({each["ReceiptHandle"]: 0 for each in found})
            return found

        try:
            return await asyncio.to_thread(receive)
        except asyncio.CancelledError:
            abandoned.set()
            raise
        except (BotoCoreError, ClientError) as error:
            wrong = what_is_wrong(error, f"the queue {self._queue}")
            if wrong is None:
                raise
            raise ConfigurationError(wrong) from error

    def _change(self, seconds: dict[str, int]) -> Collection[str]:
        """Set for how long messages stay hidden from others; those that are not ours any more. In a thread."""
        return self._send(
            "change_message_visibility_batch",
            [{"ReceiptHandle": handle, "VisibilityTimeout": each} for handle, each in seconds.items()],
        )

    def _delete(self, handles: Sequence[str]) -> Collection[str]:
        return self._send("delete_message_batch", [{"ReceiptHandle": handle} for handle in handles])

    def _send(self, name: str, entries: Sequence[dict[str, Any]]) -> Collection[str]:
        """Send a batch; the handles that SQS refused. Where it does not answer, the messages come again by and by."""
        named = [{"Id": str(place), **entry} for place, entry in enumerate(entries)]
        try:
            answer = getattr(self._client, name)(QueueUrl=self._queue, Entries=named)
        except (BotoCoreError, ClientError) as error:
            _LOG.warning("%s of %d messages failed (%s); they may be delivered again", name, len(named), error)
            return ()
        refused = answer.get("Failed") or []
        for each in refused:
            _LOG.warning(
                "%s was refused for one message (%s); it is delivered again", name, each.get("Code", "no reason")
            )
        return [str(entries[int(each["Id"])]["ReceiptHandle"]) for each in refused]

    def backoff(self, deliveries: int) -> int:
        """The whole seconds before what failed at this delivery of it is delivered again."""
        return round(min(self._retry_seconds_max, self._retry_seconds * 2.0 ** min(deliveries - 1, 40)))

    async def take(self, delivery: Delivery) -> bool | None:
        """Handle one delivery; whether to delete it. None: it was not handled when the consumer was stopped."""
        unnamed: Exception | None = None
        try:
            id = self._id_of(delivery)
            if not isinstance(id, str) or not id:
                raise ValueError(f"id_of= found no id in the message, but {id!r}")
        except Exception as error:  # noqa: BLE001 - counted, and parked, under the name that it has
            id, unnamed = str(delivery["MessageId"]), error
        while True:
            ended = await self._deliveries.take(id, _Named(delivery, unnamed), receives(delivery))
            if ended is not None or self._stopping.is_set():
                return ended
            await _rest(self._stopping, self._retry_seconds)


class _Batch:
    """What one receive brought: a task keeps it from other consumers, and deletes what is handled."""

    def __init__(self, consumer: SqsConsumer, received: Sequence[Delivery]) -> None:
        self._consumer = consumer
        self._received = received
        self._ours = dict.fromkeys(str(each["ReceiptHandle"]) for each in received)  # in the order they came
        self._handled: list[str] = []
        self._ended = asyncio.Event()
        self._calls = asyncio.Lock()

    async def handle(self) -> None:
        keeper = asyncio.create_task(self._keep(), name="semel-sqs-visibility")
        try:
            await self._take_all()
        finally:
            self._ended.set()
            await asyncio.wait({keeper})
            await self._settle(0)  # what was not begun may come again at once

    async def _take_all(self) -> None:
        held: set[str] = set()  # FIFO groups of which a message comes again
        for delivery in self._received:
            handle, group = str(delivery["ReceiptHandle"]), group_of(delivery)
            ended: bool | None = None
            if not self._consumer._stopping.is_set() and handle in self._ours and group not in held:
                ended = await self._consumer.take(delivery)
            if ended:
                self._handled.append(handle)
                continue
            if group is not None:
                held.add(group)
            if ended is False:
                async with self._calls:
                    if self._ours.pop(handle, handle) is None:
                        wait = self._consumer.backoff(receives(delivery))
                        await asyncio.to_thread(self._consumer._change, {handle: wait})

    async def _keep(self) -> None:
        while not await _rest(self._ended, self._consumer._visibility / 3):
            await self._settle(self._consumer._visibility)

    async def _settle(self, seconds: int) -> None:
        """Delete what is handled, and hide the rest for so long."""
        async with self._calls:
            handled = self._handled[:]
            if handled:
                del self._handled[:]
                for handle in handled:
                    self._ours.pop(handle, None)
                await asyncio.to_thread(self._consumer._delete, handled)
            if self._ours:
                changed = dict.fromkeys(self._ours, seconds)
                for handle in await asyncio.to_thread(self._consumer._change, changed):
                    self._ours.pop(handle, None)  # its time is over: it comes again, here or elsewhere


async def _rest(until: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, for so long; whether it came."""
    try:
        await asyncio.wait_for(until.wait(), seconds)
    except TimeoutError:
        return until.is_set()
    return True


def receives(delivery: Delivery) -> int:
    """How often SQS has delivered a message, about."""
    return int(delivery.get("Attributes", {}).get("ApproximateReceiveCount", 1))


def group_of(delivery: Delivery) -> str | None:
    """The group whose order a FIFO queue keeps; None on a standard queue, where groups are about fairness."""
    attributes = delivery.get("Attributes", {})
    return attributes.get("MessageGroupId") if "SequenceNumber" in attributes else None


def message_id(delivery: Delivery) -> str:
    """The attribute ``semel-id``, which relays of Semel's set, else SQS's own id, which each sending makes anew."""
    given = (delivery.get("MessageAttributes") or {}).get(EVENT_ID, {}).get("StringValue")
    return str(given or delivery["MessageId"])


def deduplication_id(delivery: Delivery) -> str:
    """For ``id_of=``: the ``MessageDeduplicationId`` that a FIFO queue's publisher gave, or its body's digest.

    Raises KeyError on a standard queue.

    >>> deduplication_id({"Attributes": {"MessageDeduplicationId": "order-7-placed"}})
    'order-7-placed'
    """
    return str(delivery["Attributes"]["MessageDeduplicationId"])


def attribute(name: str) -> Callable[[Delivery], str]:
    """For ``id_of=``: the text of a message attribute. A message without it fails, and is parked in the end.

    >>> attribute("order-id")({"MessageAttributes": {"order-id": {"DataType": "String", "StringValue": "7"}}})
    '7'
    """
    return lambda delivery: str(delivery["MessageAttributes"][name]["StringValue"])


def body_member(name: str) -> Callable[[Delivery], str]:
    """For ``id_of=``: a member of the body, which is a JSON object. A message without it fails, and is parked.

    >>> body_member("id")({"Body": '{"id": 7}'})
    '7'
    """

    def find(delivery: Delivery) -> str:
        body = json.loads(delivery["Body"])
        value = body[name] if isinstance(body, dict) else None
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError(f"the body's member {name!r} is a text or a whole number; it is {value!r:.80}")
        return str(value)

    return find


def payload_of(delivery: Delivery) -> bytes:
    """The payload of an event that a relay of Semel's sent, also where it was no text.

    >>> payload_of({"Body": '{"total":10}'})
    b'{"total":10}'
    """
    body = str(delivery["Body"])
    encoding = (delivery.get("MessageAttributes") or {}).get(ENCODING, {}).get("StringValue")
    if encoding == "empty":
        return b""
    return base64.b64decode(body, validate=True) if encoding == "base64" else body.encode()


def check_whole(name: str, value: object, least: int, most: int) -> None:
    """Raises PolicyError where it is no whole number of the range."""
    if type(value) is not int or not least <= value <= most:
        raise PolicyError(f"{name} must be a whole number from {least} to {most}; it is {value!r}")


def what_is_wrong(error: BotoCoreError | ClientError, queue: str) -> str | None:
    """What a person must put right before AWS answers otherwise; None where waiting may help."""
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return (
            "boto3 found no complete credentials: give the process a role, or set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        )
    if isinstance(error, ParamValidationError):
        return f"boto3 does not take what it was given: {error}"
    code = error.response.get("Error", {}).get("Code", "") if isinstance(error, ClientError) else ""
    if code in _MISSING:
        return f"{queue} does not exist: create it, or correct its URL, region and account ({code})"
    if code in _FORBIDDEN:
        return (
            f"AWS refuses these credentials for {queue} ({code}): allow sqs:ReceiveMessage, sqs:DeleteMessage and "
            "sqs:ChangeMessageVisibility to consume, sqs:SendMessage to publish"
        )
    return None
