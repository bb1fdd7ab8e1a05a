"""The functions that perform the catalogue's checks. A check returns if it passes, and raises Failed otherwise.

Each chapter registers its checks by id in one table; importing this package imports all chapters.
"""

from __future__ import annotations

from typing import Final

from semel.conform.checks import (
    bodies,
    connections,
    keys,
    mismatches,
    openapi,
    outages,
    problems,
    races,
    replays,
    status,
)
from semel.conform.checks.registry import CHECKS, PLACES

CHAPTERS: Final = (keys, replays, mismatches, bodies, problems, status, races, connections, openapi, outages)

__all__ = ["CHAPTERS", "CHECKS", "PLACES"]
