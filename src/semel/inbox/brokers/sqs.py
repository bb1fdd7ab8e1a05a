"""AWS SQS, through boto3, whose calls are made in threads."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from semel.errors import ConfigurationError, PolicyError
from semel.extras import install_command
from semel.inbox.brokers.delivery import EVENT_ID, Handler
from semel.inbox.brokers.pulled import LOG, PulledConsumer
from semel.inbox.run import AsyncInbox

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

ENCODING: Final = "semel-encoding"  # the attribute that marks a body that was no text
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

Delivery = dict[str, Any]


class SqsConsumer(PulledConsumer[Delivery]):
    """Handles each message of a queue once, standard or FIFO, and deletes it after its commit.

    Parameters: ``client`` boto3's ``client("sqs")``; ``queue`` the queue's URL; ``visibility_seconds`` (whole, up to
    43,200) for which SQS hides a message from others: extended while its handler runs, so it determines how soon a dead
    worker's messages are redelivered; ``retry_seconds`` before a failed message is redelivered, doubled with each
    delivery up to ``retry_seconds_max``; ``id_of`` finds a message's id, by default the attribute ``semel-id``, else
    SQS's own ``MessageId`` (:func:`deduplication_id`, :func:`attribute` and :func:`body_member` find others);
    ``handler(message, delivery)`` gets the message as boto3 has it.

    During a store outage, or while another worker handles a message, the message is kept and retried here: its receive
    count does not grow towards the queue's ``maxReceiveCount``. On a FIFO queue the messages after a failed one of the
    same group are returned.

        consumer = SqsConsumer(inbox, handler, boto3.client("sqs"), queue=url)
        await consumer.serve()

    Raises PolicyError for an invalid option.
    """

    BATCH_MAX = 10
    LEASE_SECONDS_MAX = 43_200
    LEASE_NAME = "visibility_seconds"
    AWAY = (BotoCoreError, ClientError)

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
                "queue must be the queue's URL, as client.get_queue_url(QueueName=…)['QueueUrl'] returns it; it "
                f"is {queue!r}"
            )
        super().__init__(
            inbox,
            handler,
            f"the queue {queue}",
            lease_seconds=visibility_seconds,
            retry_seconds=retry_seconds,
            retry_seconds_max=retry_seconds_max,
            id_of=id_of if id_of is not None else message_id,
            failed=failed,
        )
        self._client = client
        self._queue = queue

    def fetch(self, batch: int, wait_seconds: int) -> list[Delivery]:
        """ReceiveMessage, by long poll."""
        try:
            answer = self._client.receive_message(
                QueueUrl=self._queue,
                MaxNumberOfMessages=batch,
                WaitTimeSeconds=wait_seconds,
                VisibilityTimeout=self._lease,
                MessageSystemAttributeNames=["All"],
                MessageAttributeNames=["All"],
            )
        except (BotoCoreError, ClientError) as error:
            wrong = what_is_wrong(error, self.source)
            if wrong is None:
                raise
            raise ConfigurationError(wrong) from error
        found: list[Delivery] = answer.get("Messages", [])
        return found

    def lend(self, seconds: Mapping[str, int]) -> Collection[str]:
        """ChangeMessageVisibilityBatch."""
        return self._send(
            "change_message_visibility_batch",
            [{"ReceiptHandle": handle, "VisibilityTimeout": each} for handle, each in seconds.items()],
        )

    def acknowledge(self, handles: Sequence[str]) -> object:
        """DeleteMessageBatch."""
        return self._send("delete_message_batch", [{"ReceiptHandle": handle} for handle in handles])

    def _send(self, name: str, entries: Sequence[dict[str, Any]]) -> Collection[str]:
        """Send a batch. Returns the handles that SQS refused. Without an answer, SQS redelivers the messages later."""
        named = [{"Id": str(place), **entry} for place, entry in enumerate(entries)]
        try:
            answer = getattr(self._client, name)(QueueUrl=self._queue, Entries=named)
        except (BotoCoreError, ClientError) as error:
            LOG.warning("%s of %d messages failed (%s); they may be delivered again", name, len(named), error)
            return ()
        refused = answer.get("Failed") or []
        for each in refused:
            LOG.warning(
                "%s was refused for one message (%s); it is delivered again", name, each.get("Code", "no reason")
            )
        return [str(entries[int(each["Id"])]["ReceiptHandle"]) for each in refused]

    def handle_of(self, delivery: Delivery) -> str:
        """Return its ReceiptHandle."""
        return str(delivery["ReceiptHandle"])

    def broker_id_of(self, delivery: Delivery) -> str:
        """Return its MessageId."""
        return str(delivery["MessageId"])

    def deliveries_of(self, delivery: Delivery) -> int:
        """Return the approximate number of SQS deliveries."""
        return int(delivery.get("Attributes", {}).get("ApproximateReceiveCount", 1))

    def group_of(self, delivery: Delivery) -> str | None:
        """Return the ordered group on a FIFO queue; None on a standard queue, where groups only serve fairness."""
        attributes = delivery.get("Attributes", {})
        return attributes.get("MessageGroupId") if "SequenceNumber" in attributes else None


def message_id(delivery: Delivery) -> str:
    """Return the attribute ``semel-id``, which Semel's relays set, else SQS's own id, which is new in each send."""
    given = (delivery.get("MessageAttributes") or {}).get(EVENT_ID, {}).get("StringValue")
    return str(given or delivery["MessageId"])


def deduplication_id(delivery: Delivery) -> str:
    """Return, as ``id_of=``, the ``MessageDeduplicationId`` of a FIFO queue: the publisher's, or the body's digest.

    Raises KeyError on a standard queue.

    >>> deduplication_id({"Attributes": {"MessageDeduplicationId": "order-7-placed"}})
    'order-7-placed'
    """
    return str(delivery["Attributes"]["MessageDeduplicationId"])


def attribute(name: str) -> Callable[[Delivery], str]:
    """Make an ``id_of=`` that reads a message attribute. A message without it fails, and is parked in the end.

    >>> attribute("order-id")({"MessageAttributes": {"order-id": {"DataType": "String", "StringValue": "7"}}})
    '7'
    """
    return lambda delivery: str(delivery["MessageAttributes"][name]["StringValue"])


def body_member(name: str) -> Callable[[Delivery], str]:
    """Make an ``id_of=`` that reads a member of a JSON body. A message without it fails, and is parked in the end.

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
    """Return the payload of an event from Semel's relay, even if it was no text.

    >>> payload_of({"Body": '{"total":10}'})
    b'{"total":10}'
    """
    body = str(delivery["Body"])
    encoding = (delivery.get("MessageAttributes") or {}).get(ENCODING, {}).get("StringValue")
    if encoding == "empty":
        return b""
    return base64.b64decode(body, validate=True) if encoding == "base64" else body.encode()


def what_is_wrong(error: BotoCoreError | ClientError, queue: str) -> str | None:
    """Return the problem that a person must fix at AWS; None if waiting may help."""
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
