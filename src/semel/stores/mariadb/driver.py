"""The driver of the MariaDB store: PyMySQL in threads, asyncmy on event loops."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from semel.core.flow import MakeFlow
from semel.stores.loops import Loops
from semel.stores.mariadb.asyncmy_client import AsyncmyLoop
from semel.stores.mariadb.protocol import MariadbServer
from semel.stores.mariadb.pymysql_client import PymysqlThreads
from semel.stores.pool import Closes, ClosesAsync
from semel.stores.process import begin_in_children

T = TypeVar("T")


class MariadbDriver:
    """Runs the MariaDB store's flows. Connects when first used; safe after a fork, and on any event loop."""

    coalesces = True

    def __init__(
        self, server: MariadbServer, units: Closes | None = None, async_units: ClosesAsync | None = None
    ) -> None:
        self.server = server
        self._units = units
        self._async_units = async_units
        self._inherited: list[object] = []  # a parent's connections: never used here, never closed
        self._begin()
        begin_in_children(self)

    def _begin(self) -> None:
        self._threads = PymysqlThreads(self.server)
        self._loops = Loops(lambda: AsyncmyLoop(self.server), AsyncmyLoop.drop_idle)

    def begin_process(self) -> None:
        """Start without connections in a forked child."""
        self._inherited += [self._threads, self._loops]
        self._begin()

    def run(self, make: MakeFlow[T]) -> T:
        """Run a flow from an ordinary thread.

        Raises:
            StoreUnavailable: the server cannot be reached or refuses; nothing was written by the last statement.
            StoreTimeout: the answer was lost; whether it took effect is not known yet.
        """
        return self._threads.run(make)

    def close(self) -> None:
        """Close idle connections. The driver may be used again."""
        self._threads.close()
        if self._units is not None:
            self._units.close()

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Run a flow from an event loop, in a separate task that survives a cancelled caller. Raises as ``run``."""
        result: T = await asyncio.shield(self._loop().start(make))
        return result

    async def run_uncut(self, make: MakeFlow[T], waited: float = 0.0) -> T:
        """As ``run_async``, for a task of the engine that is never cancelled and has waited ``waited`` seconds."""
        return await self._loop().run(make, waited)

    @property
    def patience_seconds(self) -> float:
        """The seconds that a call may take."""
        return self.server.patience_seconds

    def _loop(self) -> AsyncmyLoop:
        return self._loops.here()

    async def close_async(self) -> None:
        """Wait for running calls, then close idle connections. The driver may be used again."""
        await self._loop().close()
        if self._async_units is not None:
            await self._async_units.close()
        self.close()
