"""Twenty thousand schedules in which every invariant holds. Every (state × event) that can be is reached in them, and
nothing that cannot be: both ways, so that neither list ages.

``make soak`` plays a million. Every planted fault that a schedule can show is found within the first 600, which
tests/mutants proves. None of them is measured: a coverage tool would see the same lines over and over. What it sees of
the simulator comes from the smaller runs of the other modules.
"""

from __future__ import annotations

from typing import Final

import pytest

from verification.simulate import search
from verification.simulate.coverage import EVENTS, NEVER_IN_CI, STATES, Counts, must_reach, table, why_not

SCHEDULES: Final = 20_000
PAIRS: Final = [(state, event) for state in STATES for event in EVENTS]


@pytest.mark.no_cover
def test_every_invariant_holds_and_every_pair_is_reached() -> None:
    reached: Counts = {}
    ran: list[int] = []
    violation = search(range(SCHEDULES), covered=reached, progress=ran.append)
    assert violation is None, violation.report()
    assert len(ran) == SCHEDULES
    print(table(reached))
    assert [pair for pair in PAIRS if must_reach(*pair) and pair not in reached] == []
    assert [pair for pair in reached if why_not(*pair) is not None] == []
    assert set(reached) <= set(PAIRS)


def test_each_pair_is_demanded_or_possible_or_explained() -> None:
    for pair in PAIRS:
        assert not (must_reach(*pair) and why_not(*pair)), pair
    assert sum(must_reach(*pair) for pair in PAIRS) > 150
    assert all(why_not("CLAIMED", event) for event in EVENTS)
    assert (
        why_not("PROCESSING", "purge: forgotten") == "what is open, UNKNOWN or within its retention is never forgotten"
    )
    assert why_not("never seen", "attempt") is None
    assert why_not("never seen", "settle, lost request") is not None
    for pair, why in NEVER_IN_CI.items():
        assert pair in PAIRS
        assert why
        assert not must_reach(*pair)
        assert why_not(*pair) is None


def test_the_table_shows_impossible_pairs() -> None:
    shown = table({("PROCESSING", "attempt"): 7})
    [line] = [line for line in shown.splitlines() if line.startswith("attempt ")]
    assert line.split() == ["attempt", "0", "·", "7", "0", "0", "0", "0", "0", "0", "0"]
