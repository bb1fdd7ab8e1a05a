"""The driver of the memory store: one table, one lock, the host's clock.

A memory store belongs to one process. In a forked child it would be a second, empty truth, so that a
retry could run twice without anybody noticing: there it refuses to answer.
"""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar

from semel.drivers.clock import Clock, system_clock
from semel.errors import StoreUnavailable
from semel.flow import Ask, MakeFlow, perform
from semel.stores.memory import Call, Table

T = TypeVar("T")


class LocalDriver:
    """Runs the memory store's flows. Thread-safe; never blocks for longer than one verb."""

    def __init__(self, *, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._table = Table()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._last = 0

    def run(self, make: MakeFlow[T]) -> T:
        """Run a flow to its end."""
        if os.getpid() != self._pid:
            raise StoreUnavailable(
                "a memory:// store cannot be used after fork: each worker would have its own truth; "
                "use sqlite:/// for several processes, or connect after the fork"
            )
        return perform(make(), self._answer)

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Run a flow to its end, without ever suspending."""
        return self.run(make)

    def _answer(self, needed: Ask[Any]) -> Any:
        assert isinstance(needed, Call)
        with self._lock:
            return needed.act(self._table, self._clock())

    def close(self) -> None:
        """Nothing to close: the table goes with the driver."""

    async def close_async(self) -> None:
        """Nothing to close."""
