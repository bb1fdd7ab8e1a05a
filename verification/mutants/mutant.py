"""A mutant: one line of the protocol wrong on purpose, with the sentence that says what it breaks."""

from __future__ import annotations

from dataclasses import dataclass

from verification.explore.replacing import Patch


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """``part`` is the part of the kit that must find it; the others may.

    Parameters: ``name`` for the command line; ``does`` what is wrong in it, as a sentence; ``breaks`` the invariant
    of the design; ``patch`` puts it in place, and raises NothingToReplace where the code has moved on.
    """

    name: str
    does: str
    breaks: str
    part: str
    patch: Patch


@dataclass(frozen=True, slots=True)
class Finding:
    """How a part of the kit detected a mutant: its message, and after how much."""

    part: str
    after: int
    unit: str
    said: str
