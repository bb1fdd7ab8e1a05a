"""The table of all checks: what performs each, and beside which others it may run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from semel.conform.attempt import Try
from semel.conform.order import ALONE, Place

Perform = Callable[[Try], Awaitable[None]]
CHECKS: Final[dict[str, Perform]] = {}
PLACES: Final[dict[str, Place]] = {}


def check(name: str, place: Place = ALONE) -> Callable[[Perform], Perform]:
    """Register what performs a check of the catalogue, and beside which others it may run."""

    def register(perform: Perform) -> Perform:
        CHECKS[name], PLACES[name] = perform, place
        return perform

    return register
