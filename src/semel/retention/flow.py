"""Forgetting everything whose time is over, one kind after the other, in chunks: records and what hangs on them.

Each chunk is one short store call of its own, so a purge is safe beside live traffic and may stop anywhere: what it has
not met, the next one meets. When a record may go is decided in ``core/timing``. Items and bulks go with their record,
operations and handled messages after their own retention, events a while after the proof that they were published. What
is open, UNKNOWN, parked or waits to be published never goes. The reaper and ``semel purge`` both perform this sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final, NamedTuple, Protocol

from semel.bulk.flow import purge_items
from semel.core.contract import Store
from semel.core.flow import Flow, ask
from semel.core.model import Purged
from semel.core.requests import Perform
from semel.inbox.flow import purge_messages
from semel.operations.flow import is_kept_by, purge_operations
from semel.outbox.store import Events
from semel.stores.sql.dialect import dialect_of

PURGE_CHUNK: Final = 500
REST_SECONDS_MAX: Final = 1.0
KEEP_EVENTS_SECONDS: Final = 86_400.0
"""How long published events are kept by default; a relay keeps them as long."""


class PurgedAll(NamedTuple):
    """The result of a purge, by kind. A bulk counts among its items."""

    scanned: int
    answers: int
    records: int
    operations: int
    items: int
    messages: int
    events: int


def _ignore(so_far: Purged) -> None:
    return None


def _untold(kind: str, gone: int) -> None:
    return None


def purge_walk(store: Store, chunk: int = PURGE_CHUNK, progress: Callable[[Purged], None] = _ignore) -> Flow[Purged]:
    """Drop every expired answer and forget every expired tombstone; the sums of all chunks.

    Parameters: ``chunk`` how many records one store call looks at; ``progress`` gets the sums after each.
    """
    scanned = dropped = forgotten = 0
    after: int | None = None
    while True:
        done = yield from ask(Perform("purge", partial(store.purge, after, chunk)))
        scanned += done.scanned
        dropped += done.answers_dropped
        forgotten += done.forgotten
        total = Purged(scanned, dropped, forgotten, done.next_after)
        progress(total)
        if done.next_after is None:
            return total
        after = done.next_after


def purge_events(store: Store, chunk: int, keep_us: int) -> Flow[Purged]:
    """Forget the events that were published longer ago than ``keep_us``, chunk by chunk; how many."""
    events = Events(dialect_of(store, "events"))

    def swept() -> Flow[Purged]:
        gone = yield from events.sweep(keep_us, chunk)
        return Purged(gone, 0, gone, None)

    forgotten = 0
    while True:
        done = yield from ask(Perform("purge_events", swept))
        forgotten += done.forgotten
        if done.forgotten < chunk:
            return Purged(forgotten, 0, forgotten, None)


def purge_quotas(store: Store) -> Flow[Purged]:
    """Forget the counts of callers of whom no new key counts any more, 10,000 of them at most."""
    gone = yield from store.forget_quotas()
    return Purged(gone, 0, gone, None)


def purge_all(
    store: Store,
    chunk: int = PURGE_CHUNK,
    keep_events_us: int | None = int(KEEP_EVENTS_SECONDS * 1_000_000),
    progress: Callable[[Purged], None] = _ignore,
    tell: Callable[[str, int], None] = _untold,
    bulks: Collection[bytes] | None = None,
) -> Flow[PurgedAll]:
    """Forget everything whose time is over; the sums.

    Parameters: ``chunk`` how many rows one store call looks at; ``keep_events_us`` how long published events are kept,
    None where their relay forgets them, which knows how long; ``progress`` gets the sums of the walk over the
    records; ``tell`` each kind as soon as it is done, so that what failed behind it is not all that is known;
    ``bulks`` the only ones whose items may go, by operation id, None for every one.
    """
    if store.capabilities.counts_new_keys:
        while (yield from ask(Perform("purge_quotas", lambda: purge_quotas(store)))).forgotten:
            pass
    walked = yield from purge_walk(store, chunk, progress)
    tell("answers", walked.answers_dropped)
    tell("records", walked.forgotten)
    total = PurgedAll(walked.scanned, walked.answers_dropped, walked.forgotten, 0, 0, 0, 0)
    if not is_kept_by(store):
        return total
    kinds: dict[str, Flow[Purged]] = {
        "operations": purge_operations(store, chunk),
        "items": purge_items(store, chunk, bulks),  # after the records: those of the ones that went just now go, too
        "messages": purge_messages(store, chunk),
    }
    if keep_events_us is not None:
        kinds["events"] = purge_events(store, chunk, keep_events_us)
    gone: dict[str, int] = {}
    for kind, purge in kinds.items():
        gone[kind] = (yield from purge).forgotten
        tell(kind, gone[kind])
    return total._replace(**gone)


class Walked(Protocol):
    """The result of one chunk of a walk, with the place or id at which the next one continues."""

    @property
    def answers_dropped(self) -> int: ...

    @property
    def forgotten(self) -> int: ...


def rest_seconds(done: Walked, took: float) -> float:
    """The pause after a chunk in seconds: as long as it took, if it wrote rows.

    A file has one writer: a purge that continues at once would let commands of other processes wait for many chunks.

    Parameters: ``took`` seconds.

    >>> rest_seconds(Purged(500, 0, 500, 501), 0.02), rest_seconds(Purged(500, 0, 0, 501), 0.02)
    (0.02, 0.0)
    """
    return min(took, REST_SECONDS_MAX) if done.answers_dropped or done.forgotten else 0.0
