"""Logs why a store fails under commands. Answers to clients leave the reason out, since it names hosts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from semel.errors import IdentityMismatch, RequestError, SchemaError, SemelError, StoreError
from semel.telemetry import safe

EVERY_SECONDS: Final = 10.0
NO_STORE: Final = (StoreError, SchemaError, IdentityMismatch)  # the store cannot take a command: nothing ran
UNCLAIMED: Final = (*NO_STORE, RequestError)  # or it breaks a limit, and its key is not on record


class Outage:
    """Logs an outage and its remedy once in ``EVERY_SECONDS``, however many commands it affects.

    >>> Outage(clock=lambda: 7.0).tell(StoreError("the server is down: start it"))
    True
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._again = float("-inf")

    def tell(self, error: SemelError) -> bool:
        """Log a line, unless one was logged within ``EVERY_SECONDS``. Return whether it was logged."""
        now = self._clock()
        if now < self._again:
            return False
        self._again = now + EVERY_SECONDS
        import logging  # imported late: a process whose store works never needs it

        logging.getLogger("semel").error(
            "the store failed during a command (logged once every %g seconds): %s", EVERY_SECONDS, safe(str(error))
        )
        return True
