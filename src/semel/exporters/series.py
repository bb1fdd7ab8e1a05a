"""The series that exporters write: their names and labels, and the bounds of every label.

Prometheus and OpenTelemetry share the table: its names have dots, which Prometheus turns into underscores.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from semel.errors import ConfigurationError
from semel.stores.process import begin_in_children
from semel.telemetry import safe

OTHER: Final = "other"
VALUES_MAX: Final = 100  # different values of one label, except callers; further values become `other`
LABEL_LENGTH_MAX: Final = 100
CALLERS_MAX: Final = 1000
_CANDIDATES: Final = 8  # callers counted for each one shown

Kind = Literal["counter", "gauge", "histogram"]


class Series(NamedTuple):
    """One series: its dotted name, its kind, its labels in the event's order, and its meaning."""

    dotted: str
    kind: Kind
    labels: tuple[str, ...]
    help: str

    @property
    def name(self) -> str:
        """The name in Prometheus.

        >>> SERIES["claims"].name
        'idempotency_claims_total'
        """
        return self.dotted.replace(".", "_")


SERIES: Final[Mapping[str, Series]] = {
    "claims": Series("idempotency.claims.total", "counter", ("operation", "outcome"), "Attempts, by verdict"),
    "replays": Series("idempotency.replays.total", "counter", ("operation",), "Answers that were replayed"),
    "mismatches": Series(
        "idempotency.fingerprint_mismatch.total",
        "counter",
        ("operation", "caller"),
        "Attempts that reused a key for another request",
    ),
    "in_progress": Series(
        "idempotency.in_progress.total", "counter", ("operation",), "Attempts that found a running command"
    ),
    "unknown": Series(
        "idempotency.unknown.total", "counter", ("operation", "doubt"), "Outcomes that became unknown, by their doubt"
    ),
    "expired": Series(
        "idempotency.expired.total", "counter", ("operation",), "Attempts at a key whose answer is forgotten"
    ),
    "settlements": Series(
        "semel.settlements.total", "counter", ("operation", "outcome"), "Permits that ended, by outcome"
    ),
    "rebuilds": Series("semel.rebuilds.total", "counter", ("operation", "outcome"), "Answers that were rebuilt"),
    "unprotected": Series(
        "semel.unprotected.total", "counter", ("operation", "reason"), "Requests that ran unprotected"
    ),
    "lapsed": Series("semel.lapsed.total", "counter", ("operation",), "Leases that were found expired"),
    "reconciled": Series(
        "semel.reconciled.total", "counter", ("operation", "found"), "Calls of reconcilers, by finding"
    ),
    "gave_up": Series(
        "semel.gave_up.total", "counter", ("operation",), "Outcomes that reconcilers left to an operator"
    ),
    "superseded": Series("semel.superseded.total", "counter", ("operation",), "Holders that lost their record"),
    "weak_keys": Series("semel.weak_keys.total", "counter", ("operation", "weakness"), "Attempts with a weak key"),
    "records": Series("semel.records", "gauge", ("state",), "Records in each state, as of the last purge"),
    "purged": Series("semel.purged.total", "counter", ("kind",), "Rows and answers that purges deleted"),
    "events_published": Series("semel.events_published.total", "counter", ("topic",), "Events that were published"),
    "events_refused": Series("semel.events_refused.total", "counter", ("topic",), "Events that a broker refused"),
    "events_parked": Series("semel.events_parked.total", "counter", ("topic",), "Events that were parked"),
    "events_waiting": Series("semel.events", "gauge", ("kind",), "Events that wait or are parked"),
    "events_oldest_seconds": Series("semel.events_oldest.seconds", "gauge", (), "Age of the oldest waiting event"),
    "wait_seconds": Series("semel.wait.seconds", "histogram", ("operation",), "How long duplicates waited"),
    "store_call_seconds": Series("semel.store_call.seconds", "histogram", ("verb",), "How long store calls took"),
    "store_errors": Series("semel.store_errors.total", "counter", ("verb", "error"), "Store calls that failed"),
}
"""One series for each event of :data:`semel.telemetry.EVENTS`, by the event's name."""

CALLER_KEYS: Final = Series(
    "semel.caller_keys.total", "counter", ("caller",), "New keys of the callers with the most new keys"
)
PURGED_AT: Final = Series(
    "semel.purge_timestamp.seconds", "gauge", (), "When a purge last finished, in seconds since 1970"
)
BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def label_text(value: str) -> str:
    r"""Make a label's value safe for every exposition format, and limit its length.

    >>> label_text("al\nice"), len(label_text("a" * 1000))
    ('al\\x0aice', 100)
    """
    return safe(str(value))[:LABEL_LENGTH_MAX]


class Bounds:
    """The allowed values of each label; later ones become ``other``.

    >>> bounds = Bounds(most=2)
    >>> [bounds.value("operation", name) for name in ("pay", "ship", "refund", "pay")]
    ['pay', 'ship', 'other', 'pay']
    """

    def __init__(self, most: int = VALUES_MAX) -> None:
        self._most = most
        self._values: dict[str, set[str]] = {}
        self.begin_process()
        begin_in_children(self)

    def begin_process(self) -> None:
        """Start without the lock held: at construction, and in a forked child."""
        self._lock = threading.Lock()

    def value(self, label: str, value: str) -> str:
        """Return the value to show for a label."""
        text = label_text(value)
        with self._lock:
            values = self._values.setdefault(label, set())
            if text not in values:
                if len(values) >= self._most:
                    return OTHER
                values.add(text)
        return text


@dataclass(slots=True)
class _Shown:
    label: str
    count: int


class TopCallers:
    """The callers with their own label: the most frequent ones. All others are ``other``.

    It counts eight times as many callers (Misra and Gries: when no room is left, all counts fall by one), so that
    memory is bounded and rare callers, however many, cannot hide a frequent one. A caller that becomes more frequent
    than a labelled one takes over its label.

    Parameters: ``most`` how many callers have a label, up to 1,000; ``replaces`` False: the first ones keep theirs.

    Raises ConfigurationError where ``most`` is out of range.

    >>> top = TopCallers(1)
    >>> [top.see(caller) for caller in ("alice", "bob", "bob")]
    [('alice', None), ('other', None), ('bob', 'alice')]
    """

    def __init__(self, most: int, *, replaces: bool = True) -> None:
        if isinstance(most, bool) or not isinstance(most, int) or not 0 <= most <= CALLERS_MAX:
            raise ConfigurationError(f"callers must be a whole number from 0 to {CALLERS_MAX}; it is {most!r}")
        self._most = most
        self._replaces = replaces
        self._counts: dict[str, int] = {}  # counts of callers without a label
        self._shown: dict[str, _Shown] = {}
        self._least = 0
        self.begin_process()
        begin_in_children(self)

    def begin_process(self) -> None:
        """Start without the lock held: at construction, and in a forked child."""
        self._lock = threading.Lock()

    def see(self, caller: str) -> tuple[str, str | None]:
        """Count a caller. Return the label to use, and a label that was replaced (its series can be dropped)."""
        shown = self._shown.get(caller)
        if shown is not None:
            shown.count += 1  # without the lock: a lost count affects the order of callers, but no series
            return shown.label, None
        with self._lock:
            gone = None
            if len(self._shown) >= self._most:
                if not self._replaces or not self._shown:
                    return OTHER, None
                count = self._count(caller)
                if count <= self._least:  # shown counts only grow, so the least cannot be smaller now
                    return OTHER, None
                name, least = min(self._shown.items(), key=lambda each: each[1].count)
                self._least = least.count
                if count <= least.count:
                    return OTHER, None
                del self._shown[name]
                gone = least.label
            shown = self._shown[caller] = _Shown(label_text(caller), self._counts.pop(caller, 0) or 1)
            return shown.label, gone if gone != shown.label else None

    def _count(self, caller: str) -> int:
        counts = self._counts
        count = counts.get(caller, 0) + 1
        if count > 1 or len(counts) < _CANDIDATES * max(self._most, 1):
            counts[caller] = count
            return count
        for each in list(counts):
            counts[each] -= 1
            if not counts[each]:
                del counts[each]
        return 0
