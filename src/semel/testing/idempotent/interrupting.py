"""Simulated interruptions of bulks: watches a bulk, and lets it die in the middle of its list.

As in ``failing.py`` no process is killed: the run goes silent. Its lease is not released, its open transaction is
rolled back, and its handlers' results are lost. Chunks are small, so that a short list has a middle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from unittest.mock import patch

from semel.bulk.declaration import BulkPolicy
from semel.bulk.flow import BulkRun, HandleInside, HandleOutside
from semel.bulk.rules import ListedItem, Tally
from semel.bulk.store import Items
from semel.core.contract import Store
from semel.core.flow import Flow
from semel.core.model import Grant
from semel.http.settings import AnyEngine
from semel.testing.faults import Crash


class Moment(Enum):
    """The moment at which the run dies."""

    BETWEEN_CHUNKS = "when some items were finished, before the next ones"
    AFTER_HANDLERS = "after the handlers of some items, before their outcomes were stored"


@dataclass
class Witness:
    """The observations of the bulks that ran: their declaration, the last list's length, the places passed to handlers,
    and those with a stored outcome when the run died."""

    policy: BulkPolicy | None = None
    total: int = 0
    handed: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    died: bool = False


@contextmanager
def watch(engines: tuple[AnyEngine, ...], dies: Moment | None = None) -> Iterator[Witness]:
    """Watch bulks on these engines during the block; let the first one die if a moment is given."""
    witness = Witness()
    stores = [engine.backend.store for engine in engines]
    original = BulkPolicy.begin

    def begin(policy: BulkPolicy, store: Store, grant: Grant, total: int, *further: Any) -> BulkRun:
        run = original(policy, store, grant, total, *further)
        if not any(store is each for each in stores):
            return run
        witness.policy, witness.total = policy, total
        return _WatchedRun(run, witness, None if witness.died else dies)

    with patch.object(BulkPolicy, "begin", begin):
        yield witness


class _WatchedRun(BulkRun):
    """A run whose asks are observed."""

    def __init__(self, run: BulkRun, witness: Witness, dies: Moment | None) -> None:
        size = run.size if dies is None else min(run.size, max(1, run.total // 3))
        super().__init__(
            run.store, run.grant, run.total, size, run.effects, run.inside, run.repeatable_us, run.known, run.describe
        )
        self._witness = witness
        self._dies = dies
        self._handed: set[int] = set()

    def flow(self) -> Flow[Tally]:
        inner = super().flow()
        try:
            needed: Any = next(inner)
            while True:
                handles = isinstance(needed, (HandleInside, HandleOutside)) and bool(needed.items)
                if handles:
                    self._before(needed.items)
                try:
                    reply = yield needed
                except Exception as error:  # noqa: BLE001 -- thrown into the flow, which judges it
                    needed = inner.throw(error)
                else:
                    if handles and self._dies is Moment.AFTER_HANDLERS:
                        self._die()
                    needed = inner.send(reply)
        except StopIteration as stop:
            tally: Tally = stop.value
            return tally

    def _before(self, items: Sequence[ListedItem]) -> None:
        if self._dies is Moment.BETWEEN_CHUNKS and self._count_finished():
            self._die()
        places = {item.place for item in items}
        self._handed |= places
        self._witness.handed |= places

    def _count_finished(self) -> set[int]:
        """Count finished items: inside, at the last commit; outside, those handed out by an earlier request."""
        return {place for place in self._handed if not self.inside or place < self.tally.done}

    def _die(self) -> None:
        self._witness.died = True
        self._witness.finished |= self._count_finished() if self._dies is Moment.BETWEEN_CHUNKS else set()
        self.items = _Dead(self.store)
        raise Crash("the process died")


class _Dead(Items):
    """A dead run's replacement: gives no lease back."""

    def relinquish(self, grant: Grant) -> Flow[int]:
        yield from ()
        return 0
