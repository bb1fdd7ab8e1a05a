"""What Semel tells about itself: fixed event names and label sets, behind one small interface.

An observer gets an event's name and its labels and must not raise. Nothing here exports anything:
exporters are observers. No label ever carries a key, a body or a credential.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, Protocol

# name -> label names. The list is a promise: dashboards are built on it.
EVENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "claims": ("operation", "verdict"),
    "settlements": ("operation", "outcome"),
    "replays": ("operation",),
    "mismatches": ("operation",),
    "in_progress": ("operation",),
    "unknown": ("operation", "doubt"),
    "expired": ("operation",),
    "unprotected": ("operation", "reason"),
    "lapsed": ("operation",),
    "reconciled": ("operation", "found"),
    "gave_up": ("operation",),
    "superseded": ("operation",),
    "weak_keys": ("operation", "weakness"),
    "records": ("state",),
    "purged": ("kind",),
    "events_published": ("topic",),
    "events_refused": ("topic",),
    "events_parked": ("topic",),
    "events_waiting": ("kind",),
    "events_oldest_seconds": (),
    "wait_seconds": ("operation",),
    "store_call_seconds": ("verb",),
    "store_errors": ("verb", "error"),
}


class Observer(Protocol):
    """Receives every event. Implementations must be quick, thread-safe, and must not raise."""

    def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
        """Take one event: ``name`` and the label names are those of EVENTS; ``detail`` is for logs only."""


class Silence:
    """The observer that does nothing: the default."""

    def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
        return None


class Counting:
    """Adds up events in memory: for tests, the demo and small services.

    >>> counting = Counting()
    >>> counting.event("replays", 1, {"operation": "pay"}, {})
    >>> counting.total("replays")
    1.0
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self._sums: dict[str, float] = {}

    def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
        self.counts[name, tuple(labels.values())] += 1
        self._sums[name] = self._sums.get(name, 0.0) + value

    def total(self, name: str) -> float:
        """The sum of an event's values over all labels."""
        return self._sums.get(name, 0.0)


class Both:
    """Hands every event to several observers in turn."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
        for observer in self._observers:
            observer.event(name, value, labels, detail)


class Log(Protocol):
    """The one method of :class:`logging.Logger` that is needed here."""

    def log(self, level: int, msg: str, *args: object) -> None: ...


_WARNING, _INFO, _DEBUG = 30, 20, 10
_LOUD = frozenset(
    {"unknown", "mismatches", "superseded", "lapsed", "store_errors", "unprotected", "events_parked", "events_refused"}
)
_QUIET = frozenset(
    {"events_oldest_seconds", "events_published", "events_waiting", "wait_seconds", "store_call_seconds", "weak_keys"}
)


class Logging:
    """Writes each event as one line to a standard logger, e.g. ``Logging(logging.getLogger("semel"))``."""

    def __init__(self, logger: Log) -> None:
        self._logger = logger

    def event(self, name: str, value: float, labels: Mapping[str, str], detail: Mapping[str, str]) -> None:
        level = _WARNING if name in _LOUD else _DEBUG if name in _QUIET else _INFO
        words = " ".join(f"{k}={v}" for k, v in (*labels.items(), *detail.items()))
        self._logger.log(level, "semel.%s %s value=%g", name, words, value)
