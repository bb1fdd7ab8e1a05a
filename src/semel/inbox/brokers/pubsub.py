"""Google Pub/Sub, through google-cloud-pubsub's synchronous pull, whose calls are made in threads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from semel.errors import ConfigurationError, PolicyError
from semel.extras import install_command
from semel.inbox.brokers.delivery import EVENT_ID, Handler
from semel.inbox.brokers.pulled import LOG, PulledConsumer
from semel.inbox.run import AsyncInbox

try:
    from google.api_core.exceptions import (
        DeadlineExceeded,
        GoogleAPICallError,
        NotFound,
        PermissionDenied,
        RetryError,
        Unauthenticated,
    )
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
except ModuleNotFoundError as missing:
    raise ConfigurationError(
        f"an inbox on Pub/Sub needs google-cloud-pubsub; install it: {install_command('pubsub')}"
    ) from missing

CALL_SECONDS: Final = 20.0
_AWAY = (GoogleAPICallError, RetryError, GoogleAuthError)


class PubsubConsumer(PulledConsumer[Any]):
    """Handles each message of a subscription once, and acknowledges it after its commit.

    Parameters: ``client`` a ``google.cloud.pubsub_v1.SubscriberClient``; ``subscription`` its full name,
    ``projects/PROJECT/subscriptions/NAME``; ``lease_seconds`` (whole, up to 600) the deadline of an acknowledgement,
    extended while a handler runs: after it, a dead worker's messages are redelivered; ``retry_seconds`` before a failed
    message is redelivered, doubled with each delivery (if a dead-letter policy makes Pub/Sub count them) up to
    ``retry_seconds_max``; ``id_of`` finds a message's id, by default the attribute ``semel-id``, else Pub/Sub's own
    ``message_id``; ``handler(message, delivery)`` gets the ``ReceivedMessage``, whose ``delivery.message`` has data,
    attributes and ordering key.

    With an ordering key, the messages after a failed one are returned, and redelivered after it.

        consumer = PubsubConsumer(inbox, handler, SubscriberClient(), subscription="projects/shop/subscriptions/bill")
        await consumer.serve()

    Raises PolicyError for an invalid option.
    """

    BATCH_MAX = 1000
    LEASE_SECONDS_MAX = 600
    LEASE_NAME = "lease_seconds"
    AWAY = _AWAY

    def __init__(
        self,
        inbox: AsyncInbox,
        handler: Handler,
        client: Any,
        *,
        subscription: str,
        lease_seconds: int = 30,
        retry_seconds: float = 1.0,
        retry_seconds_max: float = 300.0,
        id_of: Callable[[Any], str] | None = None,
        failed: Callable[[str, Exception], object] | None = None,
    ) -> None:
        parts = subscription.split("/") if isinstance(subscription, str) else []
        if len(parts) != 4 or parts[0] != "projects" or parts[2] != "subscriptions" or not all(parts):
            raise PolicyError(f"subscription is projects/PROJECT/subscriptions/NAME; it is {subscription!r}")
        super().__init__(
            inbox,
            handler,
            f"the subscription {subscription}",
            lease_seconds=lease_seconds,
            retry_seconds=retry_seconds,
            retry_seconds_max=retry_seconds_max,
            id_of=id_of if id_of is not None else message_id,
            failed=failed,
        )
        self._client = client
        self._subscription = subscription

    def fetch(self, batch: int, wait_seconds: int) -> list[Any]:
        """Pull, then extend the deadline to ``lease_seconds``, in place of the subscription's own."""
        request = {"subscription": self._subscription, "max_messages": batch}
        try:
            answer = self._client.pull(request=request, timeout=max(1, wait_seconds), retry=None)
        except DeadlineExceeded:
            return []
        except _AWAY as error:
            wrong = _what_is_wrong(error, self.source)
            if wrong is None:
                raise
            raise ConfigurationError(wrong) from error
        found = list(answer.received_messages)
        if found:
            refused = self.lend(dict.fromkeys((each.ack_id for each in found), self._lease))
            found = [each for each in found if each.ack_id not in refused]
        return found

    def lend(self, seconds: Mapping[str, int]) -> Collection[str]:
        """Call ModifyAckDeadline; 0 seconds: redeliver at once."""
        refused: list[str] = []
        for each, handles in groupby(
            sorted(seconds, key=lambda handle: seconds[handle]), lambda handle: seconds[handle]
        ):
            ids = list(handles)
            request = {"subscription": self._subscription, "ack_ids": ids, "ack_deadline_seconds": each}
            refused += self._call("modify_ack_deadline", request, ids)
        return refused

    def acknowledge(self, handles: Sequence[str]) -> object:
        """Acknowledge. After the deadline, Pub/Sub redelivers the message, as a duplicate."""
        return self._call("acknowledge", {"subscription": self._subscription, "ack_ids": list(handles)}, handles)

    def _call(self, name: str, request: Mapping[str, Any], ids: Sequence[str]) -> Collection[str]:
        try:
            getattr(self._client, name)(request=request, timeout=CALL_SECONDS)
        except _AWAY as error:
            # With exactly-once delivery Pub/Sub names the messages past their deadline; all others are acknowledged.
            refused = [id for id in ids if _failures(error).get(id) == "PERMANENT_FAILURE_INVALID_ACK_ID"]
            LOG.warning("%s of %d messages failed (%s); they may be delivered again", name, len(ids), error)
            return refused
        return ()

    def handle_of(self, delivery: Any) -> str:
        """Return its ack_id."""
        return str(delivery.ack_id)

    def broker_id_of(self, delivery: Any) -> str:
        """Return its message_id."""
        return str(delivery.message.message_id)

    def deliveries_of(self, delivery: Any) -> int:
        """Return about how often it was delivered; 1 without a dead-letter policy, as Pub/Sub then does not count."""
        return max(1, int(delivery.delivery_attempt))

    def group_of(self, delivery: Any) -> str | None:
        """Return its ordering key."""
        return delivery.message.ordering_key or None


def message_id(delivery: Any) -> str:
    """Return the attribute ``semel-id``, which publishers may set, else Pub/Sub's id, new in each publish."""
    return str(delivery.message.attributes.get(EVENT_ID) or delivery.message.message_id)


def attribute(name: str) -> Callable[[Any], str]:
    """Make an ``id_of=`` that reads an attribute. A message without it fails, and is parked in the end.

    >>> from types import SimpleNamespace
    >>> attribute("order")(SimpleNamespace(message=SimpleNamespace(attributes={"order": "7"})))
    '7'
    """
    return lambda delivery: str(delivery.message.attributes[name])


def _failures(error: Exception) -> Mapping[str, str]:
    """Return the outcome of each ack_id, if the service reports it (``ErrorInfo.metadata``)."""
    found: dict[str, str] = {}
    for detail in getattr(error, "details", None) or ():
        found.update(getattr(detail, "metadata", None) or {})
    return found


def _what_is_wrong(error: Exception, source: str) -> str | None:
    """Return the problem that a person must fix; None if waiting may help."""
    if isinstance(error, NotFound):
        return f"{source} does not exist: create it, or correct its project and name"
    if isinstance(error, PermissionDenied | Unauthenticated):
        return f"Google refuses these credentials for {source}: grant roles/pubsub.subscriber"
    if isinstance(error, DefaultCredentialsError):
        return "google-auth found no credentials: use a service account, or set GOOGLE_APPLICATION_CREDENTIALS"
    return None
