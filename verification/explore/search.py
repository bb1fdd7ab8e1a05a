"""Breadth first through every state that a mode can reach; the first broken invariant has the shortest trace."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from semel.core.model import Effects
from verification.explore.atomic import atomic_steps
from verification.explore.calm import check_record
from verification.explore.canonical import canonical, row_form, without_idle_flights
from verification.explore.notebook import check
from verification.explore.stepped import stepped_steps
from verification.explore.steps import steps
from verification.explore.world import Broken, Mode, World

STATES_MAX: Final = 2_000_000  # a mode with more is not explored whole any more: give it fewer faults


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant, and the shortest way to it: the labels of its steps, the last one being what broke it."""

    invariant: str
    why: str
    trace: tuple[str, ...]


@dataclass(slots=True)
class Explored:
    """What one exploration found. ``whole`` is False where it ended early: at a violation, or at a limit."""

    mode: str
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    whole: bool = False
    violation: Violation | None = None


class _Seen:
    """The states met, each with the step that led to it first."""

    def __init__(self) -> None:
        self.places: dict[Hashable, int] = {}
        self._came: list[tuple[int, str]] = []

    def add(self, form: Hashable, before: int, label: str) -> int | None:
        """The place of a new state; None where it was met before."""
        if form in self.places:
            return None
        self.places[form] = len(self._came)
        self._came.append((before, label))
        return len(self._came) - 1

    def trace(self, place: int) -> tuple[str, ...]:
        labels: list[str] = []
        while place > 0:
            place, label = self._came[place]
            labels.append(label)
        return tuple(reversed(labels))


def explore(mode: Mode, *, states_max: int = STATES_MAX, same: Callable[[World], Hashable] = canonical) -> Explored:
    """Explore a mode.

    Parameters: ``states_max`` ends it early (then ``whole`` is False); ``same`` is what makes two worlds one state.
    """
    took = stepped_steps if mode.script else steps if mode.policy.effects != Effects.ATOMIC else atomic_steps
    found, seen, began = Explored(mode.name), _Seen(), time.perf_counter()
    records: set[Hashable] = set()
    first = mode.first()
    seen.add(same(first), 0, "")
    frontier = [(0, first)]
    idle = mode.policy.effects == Effects.IDEMPOTENT
    while frontier and len(seen.places) < states_max and found.violation is None:
        following: list[tuple[int, World]] = []
        for place, world in frontier:
            last = "the record as it stands"
            try:
                _check_state(world, mode, records)
                for label, after in took(world, mode):
                    last = label
                    found.transitions += 1
                    check(after)
                    if idle and after.flights:
                        after = without_idle_flights(after)
                    new = seen.add(same(after), place, label)
                    if new is not None:
                        following.append((new, after))
            except Broken as broken:
                found.violation = Violation(broken.invariant, broken.why, (*seen.trace(place), last))
                break
        frontier = following
        found.depth += 1
    found.states = len(seen.places)
    found.whole = not frontier and found.violation is None
    found.seconds = time.perf_counter() - began
    return found


def _check_state(world: World, mode: Mode, records: set[Hashable]) -> None:
    form = row_form(world.row, world.now)
    if form not in records:
        records.add(form)
        check_record(world.row, world.now, mode.policy)
