"""The purge's walk over a whole store, chunk by chunk, written once for the reaper and the command line.

Each chunk is one short store call of its own, so the walk is safe beside live traffic and may stop
anywhere: what it has not met, the next one meets. When a record may go is decided in ``core/timing``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from semel.core.contract import Store
from semel.core.flow import Flow, ask
from semel.core.model import Purged
from semel.core.requests import Perform

PURGE_CHUNK: Final = 500
REST_SECONDS_MAX: Final = 1.0


class Walked(Protocol):
    """The result of one chunk of a walk, with the place or id at which the next one continues."""

    @property
    def answers_dropped(self) -> int: ...

    @property
    def forgotten(self) -> int: ...


def rest_seconds(done: Walked, took: float) -> float:
    """The pause after a chunk in seconds: as long as it took, if it wrote rows.

    A file has one writer: a purge that goes on at once would let commands of other processes wait for many chunks.

    Parameters: ``took`` seconds.

    >>> rest_seconds(Purged(500, 0, 500, 501), 0.02), rest_seconds(Purged(500, 0, 0, 501), 0.02)
    (0.02, 0.0)
    """
    return min(took, REST_SECONDS_MAX) if done.answers_dropped or done.forgotten else 0.0


def _ignore(so_far: Purged) -> None:
    return None


def purge_walk(store: Store, chunk: int = PURGE_CHUNK, progress: Callable[[Purged], None] = _ignore) -> Flow[Purged]:
    """Drop every expired answer and forget every expired tombstone; the sums of all chunks.

    Parameters: ``chunk`` how many records one store call looks at; ``progress`` is told the sums after each.
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
