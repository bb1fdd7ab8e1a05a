"""The purge of all expired rows, one kind after the other, in chunks: records and everything that depends on them.

Each chunk is one short store call, so a purge is safe beside live traffic and may stop anywhere: the next one takes the
rest. ``core/timing`` decides when a record may go. Items and bulks go with their record, operations and handled
messages after their own retention, events a while after the proof that they were published. Open, UNKNOWN, parked and
unpublished rows never go. The reaper and ``semel purge`` both perform this sequence.
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
"""How long published events are kept by default, also by a relay."""


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
    """Drop every expired answer and forget every expired tombstone; return the sums of all chunks.

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
    """Forget the events that were published longer ago than ``keep_us``, chunk by chunk; return how many."""
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
    """Forget the counts of callers none of whose new keys count any more, at most 10,000 of them."""
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
    """Forget all expired rows; return the sums.

    Parameters: ``chunk`` how many rows one store call looks at; ``keep_events_us`` how long published events are kept,
    None if their relay, which knows how long, forgets them; ``progress`` gets the sums of the walk over the
    records; ``tell`` gets each kind as soon as it is done, so that the results before a failure are known;
    ``bulks`` the only ones whose items may go, by operation id, None for all.
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
        "items": purge_items(store, chunk, bulks),  # after the records: items of those that just went go too
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
    """The result of one chunk of a walk, with the position or id at which the next one continues."""

    @property
    def answers_dropped(self) -> int: ...

    @property
    def forgotten(self) -> int: ...


def rest_seconds(done: Walked, took: float) -> float:
    """Return the pause after a chunk in seconds: as long as the chunk took, if it wrote rows.

    A file has one writer: a purge without pauses would make commands of other processes wait for many chunks.

    Parameters: ``took`` seconds.

    >>> rest_seconds(Purged(500, 0, 500, 501), 0.02), rest_seconds(Purged(500, 0, 0, 501), 0.02)
    (0.02, 0.0)
    """
    return min(took, REST_SECONDS_MAX) if done.answers_dropped or done.forgotten else 0.0
