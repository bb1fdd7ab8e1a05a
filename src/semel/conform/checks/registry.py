"""The table of all checks: the function that performs each, and which others it may run beside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from semel.conform.attempt import Try
from semel.conform.order import ALONE, Place

Perform = Callable[[Try], Awaitable[None]]
CHECKS: Final[dict[str, Perform]] = {}
PLACES: Final[dict[str, Place]] = {}


def check(name: str, place: Place = ALONE) -> Callable[[Perform], Perform]:
    """Register the function that performs a check of the catalogue, and which others it may run beside."""

    def register(perform: Perform) -> Perform:
        CHECKS[name], PLACES[name] = perform, place
        return perform

    return register
