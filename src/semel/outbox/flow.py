"""A relay's handling of a batch, decided without IO: waves that keep the order, and the treatment of refusals.

Events of one aggregate go one after another: the next is sent when the one before it was acknowledged. So the first
arrival of each at the broker is in order, even if another relay publishes the same events at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Final

from semel.outbox.event import Waiting

TRIES_MAX: Final = 10
WAIT_SECONDS_MAX: Final = 600.0
OUTAGE_SECONDS_MAX: Final = 15.0
AWAY_MAX: Final = 200  # topics skipped at once; the events of any further one delay those of other topics


# After Standard Webhooks: ten tries within three days. People repair a receiver, which takes hours.
WEBHOOK_WAITS: Final = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
WEBHOOK_OUTAGE_SECONDS_MAX: Final = 300.0


class Batch:
    """Events read together, in order. Each is sent once the broker has the earlier events of its aggregate."""

    def __init__(self, events: Sequence[Waiting]) -> None:
        self._chains: dict[tuple[str, str], deque[Waiting]] = {}
        for each in events:
            self._chains.setdefault(_about(each), deque()).append(each)

    def wave(self) -> list[Waiting]:
        """Return the events that may be sent now: the next of each aggregate. Empty at the end."""
        return [chain[0] for chain in self._chains.values()]

    def mark_arrived(self, event: Waiting) -> None:
        """Note that the broker has an event: the next one of its aggregate may be sent."""
        about = _about(event)
        chain = self._chains[about]
        chain.popleft()
        if not chain:
            del self._chains[about]

    def mark_stopped(self, event: Waiting) -> None:
        """Note that the sink did not take an event: later events of its aggregate wait."""
        del self._chains[_about(event)]


class Away:
    """Topics that fail while others may work. Each is skipped, for longer after each further failure.

    Times in seconds of any clock that only grows.
    """

    def __init__(self) -> None:
        # for each: failures in a row, skipped until when, whether it asked for the pause
        self._topics: dict[str, tuple[int, float, bool]] = {}

    def __bool__(self) -> bool:
        return bool(self._topics)

    @property
    def topics(self) -> list[str]:
        """All skipped topics."""
        return sorted(self._topics)

    def keep(self, topics: Collection[str]) -> None:
        """Keep only these topics; no event of the others is waiting."""
        self._topics = {topic: found for topic, found in self._topics.items() if topic in topics}

    def note_outcome(
        self,
        unreached: Collection[str],
        arrived: Collection[str],
        now: float,
        jitter: float,
        *,
        slow: Collection[str] = (),
        asked: Mapping[str, float] = MappingProxyType({}),
        most: float = OUTAGE_SECONDS_MAX,
    ) -> bool:
        """Record a batch's results by topic; returns whether to skip unavailable topics from now on.

        A topic is not skipped if one of its events arrived: then only a part of it is unavailable, such as a partition.
        A topic that recovers brings the next try of the others forward, since the whole broker may be back. ``slow``
        topics are always skipped, but only for the first pause if one of their events arrived. ``asked`` holds the
        pauses that topics asked for, in seconds; ``most`` is the longest pause otherwise.
        """
        if not self._topics.keys().isdisjoint(arrived):
            self._topics = {
                topic: (times, until if has_asked else now, has_asked)
                for topic, (times, until, has_asked) in self._topics.items()
                if topic not in arrived
            }
        for topic in set(unreached) - (set(arrived) - set(slow)):
            if topic in self._topics or len(self._topics) < AWAY_MAX:
                times = 0 if topic in arrived else self._topics.get(topic, (0, now, False))[0]
                wait = outage_wait_seconds(times, jitter, OUTAGE_SECONDS_MAX if topic in slow else most)
                self._topics[topic] = times + 1, now + max(wait, asked.get(topic, 0.0)), topic in asked
        return all(topic in self._topics for topic in unreached)

    def find_passed_over(self, now: float) -> list[str]:
        """Return the topics that are skipped now."""
        return [topic for topic in self.topics if self._topics[topic][1] > now]

    def wait_seconds(self, now: float) -> float:
        """Return the time until the next skipped topic is tried; infinite if there is none."""
        return max(0.0, min((until for _, until, _ in self._topics.values()), default=inf) - now)


def _about(each: Waiting) -> tuple[str, str]:
    return each.event.aggregate_type, each.event.aggregate_id


def event_wait_seconds(tries: int, jitter: float, waits: Sequence[float] = ()) -> float:
    """Return the pause before the next try of an event after this many refusals.

    ``jitter`` is from 0 to 1; ``waits`` are the sink's own pauses.

    >>> event_wait_seconds(0, 1.0), event_wait_seconds(3, 1.0), event_wait_seconds(30, 1.0)
    (1.0, 8.0, 600.0)
    >>> event_wait_seconds(0, 0.5, WEBHOOK_WAITS), event_wait_seconds(30, 0.5, WEBHOOK_WAITS)
    (5.0, 86400.0)
    """
    if waits:
        return waits[min(tries, len(waits) - 1)] * (0.9 + jitter / 5)
    return min(WAIT_SECONDS_MAX, 2.0 ** min(tries, 20)) * (0.5 + jitter / 2)


def outage_wait_seconds(times: int, jitter: float, most: float = OUTAGE_SECONDS_MAX) -> float:
    """Return the pause after a broker could not be reached this many times in a row.

    >>> outage_wait_seconds(0, 1.0), outage_wait_seconds(9, 1.0)
    (0.1, 15.0)
    """
    return min(most, 0.1 * 2.0 ** min(times, 20)) * (0.5 + jitter / 2)
