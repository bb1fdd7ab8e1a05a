"""Webhook receivers with undelivered webhooks: how much waits for each, for how long, and why."""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from semel.admin.words import Json
from semel.core.flow import Flow
from semel.engine.sync_engine import Engine
from semel.outbox.rules import DISABLED, GONE, RECEIVER, receiver_of
from semel.outbox.store import Depth, Events
from semel.stores.sql.dialect import dialect_of

TOPICS_MAX: Final = 1000
PAGE: Final = 500


class Behind(NamedTuple):
    """A receiver with waiting or parked events; ``reason``: why its oldest copy was refused, if it was.

    ``disabled``: it has answered 410 Gone, and relays send it nothing.
    """

    receiver: str
    depth: Depth
    reason: str | None
    disabled: bool = False

    def document(self) -> dict[str, Json]:
        """Return the receiver as JSON."""
        return {
            "receiver": self.receiver,
            "waiting": self.depth.waiting,
            "parked": self.depth.parked,
            "oldestSeconds": self.depth.oldest_us / 1_000_000,
            "reason": self.reason,
            "disabled": self.disabled,
        }


def receivers_behind(engine: Engine) -> tuple[list[Behind], int]:
    """Return the receivers with waiting events, slowest first, and how long the oldest other event has waited.

    That time is in microseconds, 0 where no other event waits. Reads every unpublished event.

    Raises ConfigurationError where the store has no outbox, and StoreError.
    """
    events = Events(dialect_of(engine.store, "events"))

    def look() -> Flow[tuple[list[Behind], int]]:
        behind: list[Behind] = []
        disabled = yield from events.find_disabled()
        others = 0
        for topic, depth in (yield from events.topics(TOPICS_MAX)):
            name = receiver_of(topic)
            first = (yield from events.find(0, 1, parked=False, topic=topic)) if name is not None else []
            # An application's own topic may have such a name; only a copy names its receiver.
            if name is not None and (not first or dict(first[0].event.headers).get(RECEIVER) == name):
                reason = next((each.damage or each.reason for each in first), None)
                behind.append(Behind(name, depth, reason, topic in disabled))
            else:
                others = max(others, depth.oldest_us)
        return behind, others

    return engine.perform("events", look)


def enable_endpoints(engine: Engine, topic: str | None) -> int:
    """Enable disabled webhook endpoints: retry the events parked for them, and return their number.

    Parameters: ``topic`` of one receiver's copies, such as ``"receiver.shop"``; None for every disabled endpoint.

    Raises ConfigurationError where the store has no outbox, and StoreError.
    """
    events = Events(dialect_of(engine.store, "events"))
    count = 0
    for beginning in (GONE, DISABLED):  # relays stop parking first
        after = 0
        while page := engine.perform("events", partial(events.find, after, PAGE, parked=True, topic=topic)):
            for each in page:
                if (each.reason or "").startswith(beginning):
                    count += engine.perform("events", partial(events.retry, each.seq))
            after = page[-1].seq
    return count
