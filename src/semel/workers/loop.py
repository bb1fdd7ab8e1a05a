"""A worker's loop, which looks and rests until it is cancelled."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from typing import Self

from semel.errors import SchemaError, StoreError
from semel.workers.rules import Turn
from semel.workers.trouble import Trouble
from semel.workers.turns import Turns


class Loop(ABC):
    """A worker that looks at the store again and again.

    ``async with`` runs it during the block; :meth:`run` runs it until it is cancelled.

    Parameters: ``name`` of its task; ``every_seconds`` the longest pause between two looks. Pauses differ by up to a
    quarter, so that the processes of one service do not look at the same time.
    """

    def __init__(self, name: str, every_seconds: float) -> None:
        self._name = name
        self._every_seconds = every_seconds
        self._random = random.SystemRandom()
        self._trouble = Trouble(name)
        self._turns: Turns | None = None
        self._rest: float | None = None  # until the next turn, if the store takes turns
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def _look(self) -> None:
        """Look once. A store error was already reported to the observer; the next look tries again."""

    def _next_rest(self) -> float:
        """Return the time until the next look."""
        return self._rest if self._rest is not None else self._every_seconds * (1 - self._random.random() / 4)

    async def _take_turn(self) -> Turn | None:
        return None if self._turns is None else await self._turns.take()

    def _leave_turns(self) -> None:
        if self._turns is not None:
            self._turns.leave()
        self._turns = None

    async def _leave(self) -> None:
        """Clean up at the end, even when cancelled. Does nothing unless a worker overrides it."""
        return

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run(), name=self._name)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    async def run(self) -> None:
        """Look until cancelled. The worker survives store failures and unexpected errors.

        An unexpected error is logged once, and the next look comes after a rest of up to 30 seconds.
        """
        try:
            while True:
                rest = await self._look_safely()
                await asyncio.sleep(max(rest, self._next_rest()))
        finally:
            if self._turns is not None:
                self._turns.leave()
            await self._leave()

    async def _look_safely(self) -> float:
        """Look; return the least seconds to rest."""
        self._rest = None
        try:
            await self._look()
        except (StoreError, SchemaError):
            return 0.0
        except Exception as error:  # noqa: BLE001 - a worker that dies unseen leaves everything behind it undone
            return self._trouble.note_error(error)
        self._trouble.over()
        return 0.0
