"""Whether one key's operations could have taken effect one after the other (Wing and Gong's search, with a memory).

An operation takes effect at one moment between its start and its end; one without an end at any moment after its start,
or never. The search remembers which (set of operations, standing) it has been at, so that it never does the same work
twice; a limit on what it remembers keeps it from filling the memory, and is reported as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from verification.history.reading import NEVER, Operation
from verification.history.standing import NEW, Standing, Terms, step

PLACES_MAX: Final = 300_000  # what the search may remember: some 100 MB


@dataclass(frozen=True, slots=True)
class Linear:
    """There is such an order; ``operations`` in it."""

    standing: Standing


@dataclass(frozen=True, slots=True)
class Stuck:
    """There is none. Where the search got furthest, ``standing`` held, and none of ``blocked`` could come next."""

    standing: Standing
    blocked: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Undecided:
    """The search was given up at ``places`` remembered places."""

    places: int


Finding = Linear | Stuck | Undecided


def linearize(operations: Sequence[Operation], terms: Terms, places_max: int = PLACES_MAX) -> Finding:
    """Judge one key's operations, which are sorted by their start."""
    return Search(operations, terms, places_max).run()


class Search:
    """The search over one key's operations.

    Operations that were answered are ``closed``; ``masks`` say which of them have taken effect. Those that were not are
    ``open``; of several that ask the same, the one that began first is as good as any.
    """

    def __init__(self, operations: Sequence[Operation], terms: Terms, places_max: int) -> None:
        self.terms = terms
        self.places_max = places_max
        self.closed = [op for op in operations if op.result is not None]
        self.starts = [op.start_ns for op in self.closed]
        self.ends = [op.end_ns for op in self.closed]
        self.open = [op for op in operations if op.result is None and op.kind in ("attempt", "settle", "resolve")]
        self.asks = [_what(op) for op in self.open]
        self.best = -1
        self.stuck = Stuck(NEW, ())

    def run(self) -> Finding:
        """Depth first: the operation that ended first is tried first, since it mostly was first."""
        everything = (1 << len(self.closed)) - 1
        seen: set[tuple[int, int, Standing]] = set()
        places = [(0, 0, 0, NEW)]
        while places:
            mask, opened, low, at = places.pop()
            mask, low, at, next_ones = self._advance(mask, low, at)
            if mask == everything:
                return Linear(at)
            place = (mask, opened, at)
            if place in seen:
                continue
            if len(seen) >= self.places_max:
                return Undecided(len(seen))
            seen.add(place)
            before = len(places)
            self._branch(places, mask, opened, low, at, next_ones)
            if len(places) == before and mask.bit_count() > self.best:
                self.best = mask.bit_count()
                self.stuck = Stuck(at, tuple(self.closed[index] for index in next_ones))
        return self.stuck

    def _advance(self, mask: int, low: int, at: Standing) -> tuple[int, int, Standing, list[int]]:
        """Take each operation that changes nothing here, or has no alternative: no other order could do better."""
        closed, terms, count = self.closed, self.terms, len(self.closed)
        while True:
            while low < count and mask >> low & 1:
                low += 1
            next_ones = self._next_ones(mask, low)
            for index in next_ones:
                after = step(at, closed[index], terms)
                if after is at or (after is not None and len(next_ones) == 1 and not self.open):
                    mask |= 1 << index
                    at = after
                    break
            else:
                return mask, low, at, next_ones

    def _next_ones(self, mask: int, low: int) -> list[int]:
        """The closed operations before which no other must come, in the order of their ends."""
        starts, ends = self.starts, self.ends
        bound = NEVER
        found = []
        for index in range(low, len(starts)):
            if starts[index] > bound:
                break
            if not mask >> index & 1:
                found.append(index)
                if ends[index] < bound:
                    bound = ends[index]
        if len(found) > 1:
            found = [index for index in found if starts[index] <= bound]
            found.sort(key=ends.__getitem__)
        return found

    def _branch(
        self,
        places: list[tuple[int, int, int, Standing]],
        mask: int,
        opened: int,
        low: int,
        at: Standing,
        ones: list[int],
    ) -> None:
        """Every place that can be reached from here in one step, the likeliest last."""
        bound = min((self.ends[index] for index in ones), default=NEVER)
        asked = set()
        found = []
        for index, op in enumerate(self.open):
            if op.start_ns > bound:
                break
            if opened >> index & 1 or self.asks[index] in asked:
                continue
            asked.add(self.asks[index])
            after = step(at, op, self.terms)
            if after is not None and after != at:
                found.append((mask, opened | 1 << index, low, after))
        places += reversed(found)
        for index in reversed(ones):
            after = step(at, self.closed[index], self.terms)
            if after is not None:
                places.append((mask | 1 << index, opened, low, after))


def _what(op: Operation) -> tuple[object, ...]:
    """What an unanswered operation asks: those with the same request are interchangeable."""
    asked = tuple(sorted((name, str(value)) for name, value in op.args.items()))
    # Of a grant whose reply was lost it matters whose it was: only its own process could have renewed it.
    return (op.kind, op.gave_up is None, op.process if op.kind == "attempt" else "", asked)
