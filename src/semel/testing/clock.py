"""A clock that only a test moves: leases lapse and retentions end without sleeping."""

from __future__ import annotations

from typing import Final

START_US: Final = 1_700_000_000_000_000  # a plain day in 2023: fences and ids look as they do in production


class SettableClock:
    """Microseconds since 1970, as a driver's ``clock=``. It can also be set back, like real clocks.

    >>> clock = SettableClock(1_000)
    >>> clock.advance(500)
    1500
    >>> clock.set(7)
    >>> clock()
    7
    """

    def __init__(self, now_us: int = START_US) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us

    def advance(self, us: int = 0, *, seconds: float = 0) -> int:
        """Move the clock on by microseconds, or by seconds; return the new time."""
        self.now_us += us + int(seconds * 1_000_000)
        return self.now_us

    def set(self, now_us: int) -> None:
        """Set the clock, forward or back."""
        self.now_us = now_us
