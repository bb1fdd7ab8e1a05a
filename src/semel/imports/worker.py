"""A worker that runs imports beside an application: new jobs at once, those of killed processes a while later."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final

from semel.imports.run import Imports
from semel.workers.loop import Loop

EVERY_SECONDS: Final = 5.0
PURGE_SECONDS: Final = 3600.0


class ImportWorker(Loop):
    """``async with ImportWorker(imports):`` runs their jobs until the block ends, and purges hourly.

    Parameters: ``imports``; ``every_seconds`` between two searches for jobs that other processes have abandoned.
    """

    def __init__(self, imports: Imports, every_seconds: float = EVERY_SECONDS) -> None:
        super().__init__(f"semel-imports-{imports.operation}", every_seconds)
        _ = imports.handler
        self._imports = imports
        self._woken = asyncio.Event()
        self._purge_at = time.monotonic() + PURGE_SECONDS * self._random.random()

    async def run(self) -> None:
        """Run due jobs periodically, and at once when a file is submitted in this process."""
        self._imports.waker = self._woken.set
        try:
            while True:
                rest = await self._look_safely()
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(rest, self._next_rest())):
                        await self._woken.wait()
        finally:
            self._imports.waker = None
            await self._leave()

    async def _look(self) -> None:
        self._woken.clear()
        await self._imports.run_due()
        if time.monotonic() >= self._purge_at:
            self._purge_at = time.monotonic() + PURGE_SECONDS
            await self._imports.purge()
