"""One line of `semel doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """What one check saw. A warning and a problem say what to do: in ``remedy``, or in an error's own text.

    >>> Finding("disk", "ok", "12 GiB free").is_bad
    False
    """

    check: str
    level: Level
    detail: str
    remedy: str | None = None

    @property
    def is_bad(self) -> bool:
        """Whether somebody should act."""
        return self.level in ("warning", "problem")


def look_at_connections(used: int, most: int) -> Finding:
    """The finding on a server that serves so many clients of so many that it admits.

    >>> look_at_connections(95, 100).level
    'warning'
    """
    detail = f"{used} of {most} connections are taken"
    if used * 10 < most * 9:
        return Finding("connections", "ok", detail)
    remedy = "lower connections_max in the URLs (it counts for each process), raise the server's limit, or use a pooler"
    return Finding("connections", "warning", detail, remedy)


def size_text(size: int) -> str:
    """A size as people say it.

    >>> size_text(5_000), size_text(300 * 1024 * 1024)
    ('5000 B', '300 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 10_240 or unit == "GiB":
            break
        size //= 1024
    return f"{size} {unit}"
