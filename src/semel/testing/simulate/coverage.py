"""Which (state × event) pairs the schedules have reached, which they cannot, and why.

The states are those of the records, with three that the clock makes of them: a PROCESSING record whose lease is
over, one that was given back, and an answered one whose retention is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from semel.model import Record, State

STATES: Final = (
    "never seen",
    "CLAIMED",
    "PROCESSING",
    "lapsed",
    "given back",
    "SUCCEEDED",
    "FAILED_REPLAYABLE",
    "FAILED_NOT_REPLAYABLE",
    "UNKNOWN",
    "EXPIRED",
)
Counts = dict[tuple[str, str], int]


def state_name(row: Record | None, now: int) -> str:
    """The state of a record as the clock makes it."""
    if row is None:
        return "never seen"
    if row.state in (State.SUCCEEDED, State.FAILED_REPLAYABLE):
        over = row.answer_until is not None and now >= row.answer_until
        return "EXPIRED" if over else State(row.state).name
    if row.state == State.PROCESSING:
        return "given back" if row.lease_until == 0 else "lapsed" if now >= row.lease_until else "PROCESSING"
    return State(row.state).name


def add(counts: Counts, more: Mapping[tuple[str, str], int]) -> None:
    """Add one schedule's counts to those of many."""
    for pair, count in more.items():
        counts[pair] = counts.get(pair, 0) + count
