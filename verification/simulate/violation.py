"""What is raised at the first thing that must never happen."""

from __future__ import annotations


class Violated(AssertionError):
    """An invariant does not hold. ``invariant`` is its name, the message what was seen."""

    def __init__(self, invariant: str, seen: str) -> None:
        super().__init__(f"{invariant}: {seen}")
        self.invariant = invariant
        self.seen = seen
