"""Threads for blocking attempts, enough for parallel duplicates to overlap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from semel.testing.idempotent.report import CannotRun
from semel.testing.idempotent.targets.target import ATTEMPT_SECONDS, PARALLEL

T = TypeVar("T")


class Threads:
    """A pool for one target."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def open(self) -> None:
        """Start the threads."""
        self._pool = ThreadPoolExecutor(PARALLEL, "semel-attempt")

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None

    async def run(self, act: Callable[[], T]) -> T:
        """Run one blocking call; raises CannotRun if it hangs."""
        assert self._pool is not None
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._pool, act)
        except TimeoutError:
            raise CannotRun(
                f"an attempt did not come back within {ATTEMPT_SECONDS:g} seconds",
                "let the effects of a test answer at once: use a fake provider",
            ) from None
