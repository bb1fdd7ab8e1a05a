"""Turns of the workers of all processes, so that an idle fleet queries its store as rarely as one process.

A store that takes turns implements :class:`TakesTurns`; its scripts and statements follow :func:`next_turn`.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple, Protocol, runtime_checkable

from semel.core.flow import Flow

TURNS_AHEAD_MOST: Final = 60
TURN_PAGE: Final = 500  # a turn with so many new records continues the reaper's walk
TURN_KEPT_MOST: Final = 100  # a turn further ahead was computed from another clock


class Turn(NamedTuple):
    """The time of a worker's next look in microseconds of the store's clock, and the findings of this look.

    ``earliest`` when the first lease will lapse (None: none), ``abandoned`` since when the first execution waits for a
    completer, ``unknown`` whether a record is UNKNOWN, ``due`` whether an event may be published.
    """

    now: int
    next: int
    earliest: int | None = None
    abandoned: int | None = None
    unknown: bool = False
    due: bool = False


REAPER: Final = "reaper"


@runtime_checkable
class TakesTurns(Protocol):
    """A store on which the workers of all processes take turns, so that an idle fleet asks as rarely as one process."""

    def turn(self, kind: str, mine: int | None, every_us: int, reaps: bool) -> Flow[Turn]:
        """Take the next turn of a worker that has turn ``mine`` (None: it begins), ``every_us`` after the last taken.

        Parameters: ``kind`` of the workers that share turns, which look for the same things; ``reaps`` whether this
        process has a reaper, which walks over the records created since.
        """


def next_turn(now: int, mine: int | None, every_us: int, last: int | None, looked: int | None) -> int | None:
    """Return the turn that a worker takes now; None if it keeps its own, which is still to come.

    Parameters: ``last`` and ``looked`` the last turn that any worker has taken, and when it did; None: no worker has.
    If the last look is longer ago than it should be, a worker with a turn is gone, and the turns begin anew. The
    scripts and statements of the stores follow the same rule.

    >>> next_turn(100, None, 10, None, None), next_turn(100, None, 10, 130, 99), next_turn(100, 120, 10, 130, 99)
    (110, 140, None)
    >>> next_turn(100, None, 10, 130, 80)
    110
    """
    if mine is not None and now < mine < now + TURN_KEPT_MOST * every_us:
        return None
    if last is None or looked is None or last < now or looked > now or 2 * (now - looked) > 3 * every_us:
        last = now
    return min(last, now + TURNS_AHEAD_MOST * every_us) + every_us


def read_turn(now: int, following: int, found: str, due: object = None) -> Turn:
    """Read a turn from its statement's reply."""
    earliest, abandoned, unknown, met = json.loads(found)
    behind = met >= TURN_PAGE  # the walk has fallen behind
    return Turn(now, following, now if behind else earliest, abandoned, bool(unknown), bool(due))
