"""Find lapsed records without an index that every settlement would have to update.

It walks new records in order of creation, reads each one once, and remembers those that it saw open. Records that stay
open for long, and UNKNOWN ones, go to a small table, so that the walk of a process that starts tomorrow begins near the
end. All of this only finds candidates; the rule decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from semel.core.flow import Flow, ask
from semel.core.model import Record
from semel.core.settle import lapse_row
from semel.stores.sql.statements import Params, Query, Statement
from semel.stores.versions import Versions
from semel.workers.rules import TURN_PAGE

PAGE: Final = 2_000
PAGES_PER_ROUND: Final = 50
LAG_US: Final = 5_000_000  # a caller gives up on a statement that takes longer
OPEN_MAX: Final = 20_000
ROUNDS_PER_KEEP: Final = 60
COUNTED_AT_ONCE: Final = 20_000
SEQ_MAX: Final = 2**63 - 1


@dataclass(slots=True)
class Horizon:
    """The position of one process's reaper: before ``after``, only ``open`` records may still be open."""

    after: int | None = None
    open: dict[bytes, int] = field(default_factory=dict)  # record id -> seq
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Walk:
    """A store's statements for the walk: ``keep`` writes the open ids and the place of a horizon."""

    read_horizon: Statement
    scan_open: Statement
    find_lapsed: Statement
    keep: Callable[[Sequence[bytes], int], Flow[None]]
    versions: Versions

    def lapse(self, horizon: Horizon, limit: int) -> Flow[list[Record]]:
        """Run one round of the reaper: make at most ``limit`` lapsed records UNKNOWN."""
        young = yield from self._go_on(horizon)
        candidates = sorted({*horizon.open, *young})
        due = yield from ask(Query(self.find_lapsed, {"ids": candidates, "limit": limit}))
        marked: list[Record] = []
        if due:
            found = yield from self.versions.look(sorted(cast(bytes, id) for _, id in due))
            for now, row in sorted(found.values(), key=lambda seen: seen[1].lease_until):
                written = lapse_row(row, now)
                if written is not None and (yield from self.versions.replace(row, written)):
                    marked.append(written)
                    horizon.open.pop(row.id, None)
        horizon.rounds += 1
        if horizon.rounds % ROUNDS_PER_KEEP == 0 or len(horizon.open) > OPEN_MAX:
            assert horizon.after is not None
            yield from self.keep(sorted(horizon.open), horizon.after)
            horizon.open.clear()  # from now on they are found in the small table
        return marked

    def turn_params(self, horizon: Horizon, reaps: bool | None) -> Flow[Params]:
        """Return which records a turn sees. True for ``reaps`` adds those created since; None stands for no record."""
        if horizon.after is None and reaps:
            yield from self._begin(horizon)
        return {
            "ids": sorted(horizon.open) if reaps else [],
            "after": horizon.after if reaps else SEQ_MAX,
            "page": 0 if reaps is None else TURN_PAGE,
        }

    def _begin(self, horizon: Horizon) -> Flow[None]:
        [(start,)] = yield from ask(Query(self.read_horizon, {}))
        horizon.after = cast(int, start)

    def _go_on(self, horizon: Horizon) -> Flow[list[bytes]]:
        """Walk on to the end; return the open records that are too young to be left behind."""
        if horizon.after is None:
            yield from self._begin(horizon)
        after = cast(int, horizon.after)
        young: list[bytes] = []
        for _ in range(PAGES_PER_ROUND):
            rows = yield from ask(Query(self.scan_open, {"after": after, "page": PAGE, "lag": LAG_US}))
            if not rows:
                return young
            for seq, id, old in rows:
                if old and not young:
                    horizon.after = cast(int, seq)
                    if id is not None:
                        horizon.open[cast(bytes, id)] = cast(int, seq)
                elif id is not None:
                    young.append(cast(bytes, id))
            after = cast(int, rows[-1][0])
        return young


def count_states(statement: Statement) -> Flow[dict[int, int]]:
    """Count the records in each state, reading pages in order of creation.

    One statement for all would take longer than a call may, once there are some millions. Parameters: ``statement``
    returns state, count and the last place for each state of the page after ``:after``.
    """
    found: dict[int, int] = {}
    after, page = 0, COUNTED_AT_ONCE
    while page == COUNTED_AT_ONCE:
        rows = yield from ask(Query(statement, {"after": after, "page": COUNTED_AT_ONCE}))
        page = 0
        for state, count, last in cast("list[tuple[int, int, int]]", rows):
            found[state] = found.get(state, 0) + count
            page += count
            after = max(after, last)
    return dict(sorted(found.items()))
