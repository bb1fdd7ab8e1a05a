"""The clock of stores that live on this host."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]


def system_clock() -> int:
    """Return microseconds since 1970 by the host's clock, which all processes on the host share."""
    return time.time_ns() // 1000
