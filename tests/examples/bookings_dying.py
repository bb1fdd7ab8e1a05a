"""The bookings service, killed as by power loss right before or right after its unit's COMMIT (``DIES``)."""

from __future__ import annotations

import os
import signal
from typing import Any

from examples.bookings.app import app
from semel.stores.postgres.psycopg.transaction_async import AsyncPsycopgUnit

__all__ = ["app"]

settle = AsyncPsycopgUnit.settle_async


async def die(self: AsyncPsycopgUnit, needed: Any) -> bool:
    """Settle, and never tell of it."""
    if os.environ["DIES"] == "after":
        await settle(self, needed)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it is dead")


AsyncPsycopgUnit.settle_async = die  # type: ignore[method-assign]
