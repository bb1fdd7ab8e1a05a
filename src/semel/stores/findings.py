"""Texts and findings that the doctors of several stores share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from semel.core.contract import DoctorFinding

NAMES_SHOWN: Final = 5


def names_text(names: Sequence[str]) -> str:
    """List the first few of many names.

    >>> names_text(["a", "b", "c", "d", "e", "f", "g"])
    'a, b, c, d, e and 2 more'
    """
    rest = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def look_at_connections(used: int, most: int) -> DoctorFinding:
    """Judge how many of a server's connections are taken.

    >>> look_at_connections(95, 100).level
    'warning'
    """
    detail = f"{used} of {most} connections are taken"
    if used * 10 < most * 9:
        return DoctorFinding("connections", "ok", detail)
    remedy = "lower connections_max in the URLs (it counts for each process), raise the server's limit, or use a pooler"
    return DoctorFinding("connections", "warning", detail, remedy)


def size_text(size: int) -> str:
    """Write a size for people.

    >>> size_text(5_000), size_text(300 * 1024 * 1024)
    ('5000 B', '300 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 10_240 or unit == "GiB":
            break
        size //= 1024
    return f"{size} {unit}"
