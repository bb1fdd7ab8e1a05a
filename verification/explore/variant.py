"""An unsafe variant of the protocol, which the explorer must refuse."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace

from verification.explore.modes import mode_named
from verification.explore.replacing import Patch
from verification.explore.world import SAFE, Habits, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """An unsafe variant: what it does, in which mode it is explored, and which invariant it must break."""

    name: str
    does: str
    mode: str
    breaks: str
    patch: Patch = nullcontext
    habits: Habits = SAFE

    def make_mode(self) -> Mode:
        """The mode with this variant's habits."""
        return replace(mode_named(self.mode), habits=self.habits)
