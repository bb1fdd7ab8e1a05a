"""How PostgreSQL's reaper finds lapsed records without an index that every settlement would have to change.

It walks what was created since, in order of creation, and remembers what it saw open: each record is read
once. What stays open for long, and what became UNKNOWN, goes to a small table, so that the walk of a
process that starts tomorrow begins near the end. All of this only finds candidates; the rule decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

from semel.flow import Flow, ask
from semel.model import Record
from semel.rules.settle import lapsed_row
from semel.stores.statements import Query, statements

SQL: Final = statements("semel.stores", "postgres_upkeep.sql")
PAGE: Final = 2_000
PAGES_PER_ROUND: Final = 50
LAG_US: Final = 5_000_000  # a statement that goes on for longer has been given up on
OPEN_MAX: Final = 20_000
ROUNDS_PER_KEEP: Final = 60

Look = Callable[[Sequence[bytes]], Flow[dict[bytes, tuple[int, Record]]]]
Replace = Callable[[Record, Record], Flow[bool]]


class Horizon:
    """Where one process's reaper has come to: behind ``after``, only ``open`` records may still be open."""

    def __init__(self) -> None:
        self.after: int | None = None
        self.open: dict[bytes, int] = {}  # record id -> seq
        self.rounds = 0


def lapse(horizon: Horizon, limit: int, look: Look, replace: Replace) -> Flow[list[Record]]:
    """One round of the reaper: at most ``limit`` lapsed records made UNKNOWN."""
    young = yield from _walk(horizon)
    candidates = sorted({*horizon.open, *young})
    due = yield from ask(Query(SQL["find_lapsed"], {"ids": candidates, "limit": limit}))
    marked: list[Record] = []
    if due:
        found = yield from look(sorted(cast(bytes, id) for _, id in due))
        for now, row in sorted(found.values(), key=lambda seen: seen[1].lease_until):
            written = lapsed_row(row, now)
            if written is not None and (yield from replace(row, written)):
                marked.append(written)
                horizon.open.pop(row.id, None)
    horizon.rounds += 1
    if horizon.rounds % ROUNDS_PER_KEEP == 0 or len(horizon.open) > OPEN_MAX:
        yield from _keep(horizon)
    return marked


def _walk(horizon: Horizon) -> Flow[list[bytes]]:
    """Go on to the end; answers the open records that are too young to be left behind."""
    if horizon.after is None:
        [(start,)] = yield from ask(Query(SQL["read_horizon"], {}))
        horizon.after = cast(int, start)
    after = horizon.after
    young: list[bytes] = []
    for _ in range(PAGES_PER_ROUND):
        rows = yield from ask(Query(SQL["scan_open"], {"after": after, "page": PAGE, "lag": LAG_US}))
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


def _keep(horizon: Horizon) -> Flow[None]:
    assert horizon.after is not None
    yield from ask(Query(SQL["keep_horizon"], {"ids": sorted(horizon.open), "horizon": horizon.after}))
    horizon.open.clear()  # from now on they are found in the small table
