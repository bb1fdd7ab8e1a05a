"""The lists that bulks are given, also in processes that import nothing else."""

from __future__ import annotations

import os
import signal
from typing import Any


def number_items(count: int, *, first: int = 0) -> list[dict[str, Any]]:
    return [{"clientItemId": f"i-{n}", "n": n} for n in range(first, first + count)]


def die() -> None:
    """End the process as a crash does."""
    os.kill(os.getpid(), signal.SIGKILL)
