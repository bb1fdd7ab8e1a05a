"""Checks whether a purge may trust the store's clock: with a wrong year it would forget every finished key.

Nothing here reads a clock. A purge that waits for a day costs some disk; one under a wrong clock costs a second effect.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

JUMP_US_MAX: Final = 600_000_000  # as much as a purge waits beyond each retention
GAP_US_MAX: Final = 86_400_000_000  # beyond this, a store without new records cannot be told from a wrong clock
PROVING_SECONDS: Final = 86_400.0  # how long the clock must then agree with this process


def clock_gap(now: int, newest: int | None) -> int:
    """Return by how many microseconds the clock is ahead of the newest record, if by more than a day; else 0.

    >>> clock_gap(31 * GAP_US_MAX, 0) == 31 * GAP_US_MAX, clock_gap(GAP_US_MAX, 0), clock_gap(7, None)
    (True, 0, 0)
    """
    gap = 0 if newest is None else now - newest
    return gap if gap > GAP_US_MAX else 0


def bound_now(now: int, newest: int | None) -> int:
    """Return the latest time that the newest record explains, in microseconds: a day after it, or ``now``.

    >>> bound_now(31 * GAP_US_MAX, 7) == GAP_US_MAX + 7, bound_now(31, 7), bound_now(31, None)
    (True, 31, 31)
    """
    return now if not clock_gap(now, newest) else (newest or 0) + GAP_US_MAX


@dataclass(slots=True)
class PurgeClock:
    """One process's observations of a store's clock.

    Parameters: ``now`` and ``newest`` are microseconds of the store's clock, ``uptime`` seconds of this process's
    monotonic one, which no setting of the host's time moves.
    """

    _last: tuple[int, float] | None = field(default=None)
    _doubted: float | None = field(default=None)  # the uptime at which the doubt began
    _moved: int = field(default=0)

    def doubt(self, now: int, newest: int | None, uptime: float) -> int:
        """Return the unexplained movement of the clock in microseconds; 0 if a purge may trust it."""
        last, self._last = self._last, (now, uptime)
        if last is None:
            moved = clock_gap(now, newest)
        else:
            moved = now - last[0] - int((uptime - last[1]) * 1_000_000)
            if moved < -JUMP_US_MAX:  # the clock was set back: an earlier doubt may be over
                self._doubted = None
                moved = clock_gap(now, newest)
        if moved > JUMP_US_MAX:
            self._doubted, self._moved = uptime, moved
        if self._doubted is None or uptime - self._doubted >= PROVING_SECONDS:
            self._doubted = None
            return 0
        return self._moved
