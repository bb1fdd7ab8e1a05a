"""Which turn a worker takes: after the last one that any took, and anew where the one that had it is gone."""

from __future__ import annotations

import pytest

from semel.workers.rules import next_turn

NOW = 10_000
EVERY = 10


@pytest.mark.parametrize(
    ("mine", "last", "looked", "taken"),
    [
        # No worker has taken a turn yet, or half of its data is missing.
        (None, None, None, NOW + 10),
        (None, None, NOW, NOW + 10),
        (None, NOW + 50, None, NOW + 10),
        # After the last one, which is still to come or just now.
        (None, NOW + 50, NOW, NOW + 60),
        (None, NOW, NOW, NOW + 10),
        (None, NOW - 1, NOW, NOW + 10),
        (None, NOW + 599, NOW, NOW + 609),
        (None, NOW + 600, NOW, NOW + 610),
        (None, NOW + 601, NOW, NOW + 610),  # no further ahead than sixty turns
        # The last look is as long ago as it may be, or longer: the one that was to look is gone.
        (None, NOW + 50, NOW - 15, NOW + 60),
        (None, NOW + 50, NOW - 16, NOW + 10),
        (None, NOW + 50, NOW + 1, NOW + 10),  # by another clock
        # It keeps the turn that it has while that is to come.
        (NOW + 1, NOW + 50, NOW, None),
        (NOW + 999, NOW + 50, NOW, None),
        (NOW + 1, None, None, None),
        (NOW, NOW + 50, NOW, NOW + 60),
        (NOW - 1, NOW + 50, NOW, NOW + 60),
        (NOW + 1000, NOW + 50, NOW, NOW + 60),  # another clock gave it
    ],
)
def test_the_turn_that_is_taken(mine: int | None, last: int | None, looked: int | None, taken: int | None) -> None:
    assert next_turn(NOW, mine, EVERY, last, looked) == taken
