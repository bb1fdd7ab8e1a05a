"""One line of `semel doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """What one check saw; ``remedy`` where there is something to do."""

    check: str
    level: Level
    detail: str
    remedy: str | None = None
