"""The order of checks: which of them may run at once, and about how long a run takes.

Effects are counted for the whole API, so a check that counts them runs alone. Two kinds may run together: checks that
judge only answers, and checks that must have no effect at all, since one count that did not grow proves it for all of
them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

from semel.conform.case import Case
from semel.conform.catalogue import Check

Place = Literal["alone", "beside others", "without effects"]
ALONE: Final = "alone"
BESIDE_OTHERS: Final = "beside others"  # it counts no effects
WITHOUT_EFFECTS: Final = "without effects"  # it expects no effects, like those beside it

AT_ONCE: Final = 8
AT_ONCE_MOST: Final = 40  # each check uses a connection or two: far fewer than a race
_REQUESTS: Final[Mapping[Place, float]] = {ALONE: 3.1, BESIDE_OTHERS: 2.2, WITHOUT_EFFECTS: 1.1}
_RACES: Final = frozenset({"race-one-effect", "race-one-answer", "race-losers"})  # all judge the same rounds


def next_checks(left: Sequence[Check], places: Mapping[str, Place], at_once: int) -> list[Check]:
    """Return the checks that run next: one alone, or all of one kind that depend on no check still waiting.

    Parameters: ``left`` the checks that have not run, in the catalogue's order; ``places`` the kind of each, by its id;
    ``at_once`` how many may run together: with 1 the order is the catalogue's.
    """
    waiting = {each.id for each in left}
    first, place = left[0], places[left[0].id]  # the catalogue lists a check's prerequisites before it
    if place == ALONE or at_once == 1:
        return [first]
    return [each for each in left if places[each.id] == place and waiting.isdisjoint(each.after)]


def estimate_seconds(
    checks: Collection[Check], places: Mapping[str, Place], case: Case, at_once: int, request_seconds: float
) -> float:
    """Estimate how long these checks take, without their hooks, if a request takes ``request_seconds``."""
    requests = waits = 0.0
    for each in checks:
        place = places[each.id]
        requests += _REQUESTS[place] / (1 if place == ALONE else at_once)
        if each.id == "race-payloads":
            requests += case.limits.rounds / 2
        if "slow" in each.needs and "slow" in case.requests:
            waits += case.slow_seconds
    if any(each.id in _RACES for each in checks):
        requests += case.limits.rounds
    counts = sum(places[each.id] == ALONE for each in checks)
    return requests * request_seconds + waits + counts * case.effects.settle_seconds
