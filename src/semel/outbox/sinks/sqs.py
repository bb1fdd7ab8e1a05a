"""AWS SQS, through boto3, whose calls are made in threads.

All events go to one queue. On a FIFO queue the group is the event's aggregate, so that its events keep their order, and
``MessageDeduplicationId`` is the event's id: SQS drops a repetition within five minutes. A standard queue keeps no
order and drops nothing. SQS takes ten attributes: your own headers travel together, as JSON in ``semel-headers``.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import SplitResult

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from semel.errors import UrlError
from semel.inbox.brokers.sqs import ENCODING, what_is_wrong
from semel.outbox.event import Event
from semel.outbox.sinks.base import Refused, Reply, Unreached, ascii_headers, error_text

BATCH_MAX: Final = 10
BATCH_BYTES: Final = 256 * 1024  # every queue takes this much; a larger event is sent alone
MESSAGE_BYTES_MAX: Final = 1_048_576
_ATTRIBUTES_BYTES: Final = 4096  # reserved for Semel's own attributes
_NO_TEXT: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # SQS refuses these
_GROUP: Final = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")
# the event's own fault; any other error of SQS may be temporary
_REFUSALS: Final = frozenset(
    (
        *("InvalidMessageContents", "InvalidParameterValue", "InvalidAttributeValue", "MissingParameter"),
        *(
            "AWS.SimpleQueueService.BatchRequestTooLong",
            "BatchRequestTooLong",
            "AWS.SimpleQueueService.UnsupportedOperation",
        ),
    )
)


class SqsSink:
    """Publishes to a queue of SQS.

    Parameters: ``client`` boto3's ``client("sqs")``; ``queue`` the queue's URL.
    """

    def __init__(self, client: Any, queue: str) -> None:
        self.name = queue
        self._client = client
        self._queue = queue
        self._fifo = queue.endswith(".fifo")

    async def publish(self, events: Sequence[Event]) -> list[Reply]:
        """Send in batches; return each outcome."""
        replies: list[Reply] = []
        for batch in _batches([self._entry(event) for event in events]):
            replies += await asyncio.to_thread(self._send, batch)
        return replies

    def _entry(self, event: Event) -> dict[str, Any] | Refused:
        headers = ascii_headers(event)
        own = {name: value for name, value in headers.items() if name.startswith("semel-") or name == "content-type"}
        others = {name: value for name, value in event.headers if name not in own}
        attributes = {**own, "semel-topic": event.topic}
        if others:
            attributes["semel-headers"] = json.dumps(others)
        try:
            body = event.payload.decode()
        except UnicodeDecodeError:
            body = ""
        if not event.payload:  # SQS takes no empty body
            body, attributes[ENCODING] = "empty", "empty"
        elif not body or _NO_TEXT.search(body):
            body, attributes[ENCODING] = base64.b64encode(event.payload).decode(), "base64"
        size = len(body.encode()) + sum(len(name) + len(value) + 6 for name, value in attributes.items())
        if size > MESSAGE_BYTES_MAX:
            return Refused(f"the event has {size} bytes as a message, and SQS takes {MESSAGE_BYTES_MAX}", True)
        entry: dict[str, Any] = {
            "MessageBody": body,
            "MessageAttributes": {
                name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
            },
        }
        if self._fifo:
            group = f"{event.aggregate_type}:{event.aggregate_id}"
            if not _GROUP.fullmatch(group):
                group = hashlib.sha256(group.encode()).hexdigest()
            entry.update(MessageGroupId=group, MessageDeduplicationId=event.id)
        return entry

    def _send(self, entries: Sequence[dict[str, Any] | Refused]) -> list[Reply]:
        replies: list[Reply] = [each if isinstance(each, Refused) else None for each in entries]
        sent = [{"Id": str(place), **each} for place, each in enumerate(entries) if not isinstance(each, Refused)]
        if not sent:
            return replies
        try:
            answer = self._client.send_message_batch(QueueUrl=self._queue, Entries=sent)
        except (BotoCoreError, ClientError) as error:
            if len(entries) > 1 and _code(error) in _REFUSALS:  # one of them is invalid, and SQS does not say which
                return [reply for each in entries for reply in self._send([each])]
            for each in sent:
                replies[int(each["Id"])] = self._meaning(error)
            return replies
        arrived = {each["Id"] for each in answer.get("Successful") or []}
        failed = {each["Id"]: each for each in answer.get("Failed") or []}
        for each in sent:
            if each["Id"] not in arrived:
                replies[int(each["Id"])] = _failure(failed.get(each["Id"]))
        return replies

    def _meaning(self, error: BotoCoreError | ClientError) -> Reply:
        if _code(error) in _REFUSALS:
            return Refused(error_text(error))
        return Unreached(what_is_wrong(error, f"the queue {self._queue}") or error_text(error))

    async def close(self) -> None:
        """Close the client's connections; the client reopens them on use."""
        await asyncio.to_thread(self._client.close)


def _batches(entries: Sequence[dict[str, Any] | Refused]) -> Iterator[list[dict[str, Any] | Refused]]:
    batch: list[dict[str, Any] | Refused] = []
    size = 0
    for entry in entries:
        bytes_of = 0 if isinstance(entry, Refused) else len(entry["MessageBody"].encode()) + _ATTRIBUTES_BYTES
        if not isinstance(entry, Refused):
            bytes_of += len(entry["MessageAttributes"].get("semel-headers", {}).get("StringValue", ""))
        if batch and (len(batch) == BATCH_MAX or size + bytes_of > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += bytes_of
    if batch:
        yield batch


def _code(error: BaseException) -> str:
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def _failure(failed: dict[str, Any] | None) -> Reply:
    if failed is None:
        return Unreached("SQS did not say what became of it")
    reason = f"SQS refused it: {failed.get('Code', '')} {failed.get('Message', '')}".rstrip()
    return Refused(reason) if failed.get("SenderFault") else Unreached(reason)


def sqs_sink(url: SplitResult, options: dict[str, str]) -> SqsSink:
    """Return the sink of ``sqs://sqs.REGION.amazonaws.com/ACCOUNT/QUEUE``: the queue's URL, with another scheme.

    ``?region=`` if the host does not contain it, ``?tls=no`` for a server of your own on http.
    """
    region = options.pop("region", None)
    tls = options.pop("tls", "yes")
    if tls not in ("yes", "no"):
        raise UrlError(f"tls= is yes or no; it is {tls!r}")
    if "@" in url.netloc:
        raise UrlError("sqs:// takes no account's key: boto3 finds the credentials of the process")
    if not url.hostname or url.path.count("/") < 2 or url.path.endswith("/"):
        raise UrlError("sqs:// is the queue's URL, such as sqs://sqs.eu-central-1.amazonaws.com/123456789012/orders")
    if region is None:
        host = url.hostname.split(".")
        if len(host) < 4 or host[0] != "sqs":
            raise UrlError(f"the host {url.hostname!r} does not say the queue's region; add ?region=")
        region = host[1]
    endpoint = f"{'https' if tls == 'yes' else 'http'}://{url.netloc}"
    patience = Config(connect_timeout=5, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 2})
    client = boto3.client("sqs", region_name=region, endpoint_url=endpoint, config=patience)
    return SqsSink(client, f"{endpoint}{url.path}")
