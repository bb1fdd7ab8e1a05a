"""What a relay does with a batch, decided without doing it: waves that keep the order, and what becomes of a refusal.

Events of one aggregate go one after another: the next is sent when the one before it was acknowledged. So the first
arrival of each at the broker is in order, whoever else publishes the same events at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from semel.events import Waiting

TRIES_MAX: Final = 10
WAIT_SECONDS_MAX: Final = 600.0
OUTAGE_SECONDS_MAX: Final = 15.0


class Batch:
    """Events that were read together, in their order; each is sent when those before it of its aggregate are there."""

    def __init__(self, events: Sequence[Waiting]) -> None:
        self._chains: dict[tuple[str, str], deque[Waiting]] = {}
        for each in events:
            self._chains.setdefault(_about(each), deque()).append(each)

    def wave(self) -> list[Waiting]:
        """What may be sent now: the next event of each aggregate. Empty at the end."""
        return [chain[0] for chain in self._chains.values()]

    def arrived(self, event: Waiting) -> None:
        """The broker has it: the next of its aggregate may go."""
        about = _about(event)
        chain = self._chains[about]
        chain.popleft()
        if not chain:
            del self._chains[about]

    def stopped(self, event: Waiting) -> None:
        """It was not taken: those behind it stay where they are."""
        del self._chains[_about(event)]


def _about(each: Waiting) -> tuple[str, str]:
    return each.event.aggregate_type, each.event.aggregate_id


def event_wait_seconds(tries: int, jitter: float) -> float:
    """How long an event waits that was refused so many times before; ``jitter`` from 0 to 1.

    >>> event_wait_seconds(0, 1.0), event_wait_seconds(3, 1.0), event_wait_seconds(30, 1.0)
    (1.0, 8.0, 600.0)
    """
    return min(WAIT_SECONDS_MAX, 2.0 ** min(tries, 20)) * (0.5 + jitter / 2)


def outage_wait_seconds(times: int, jitter: float) -> float:
    """How long a relay leaves a broker alone that could not be reached so many times in a row.

    >>> outage_wait_seconds(0, 1.0), outage_wait_seconds(9, 1.0)
    (0.1, 15.0)
    """
    return min(OUTAGE_SECONDS_MAX, 0.1 * 2.0 ** min(times, 20)) * (0.5 + jitter / 2)
