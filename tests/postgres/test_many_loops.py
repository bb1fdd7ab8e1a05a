"""One engine on one loop after the other, as ``asyncio.run`` in each of a worker's tasks makes them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

from semel import Answer, AsyncEngine, Permit
from semel.engine.connect_postgres import postgres_backend
from tests.engine.shells import MADE, command
from tests.servers.postgres import schema

LOOPS = 5


def test_a_loop_that_is_over_keeps_neither_itself_nor_a_connection(conninfo: str) -> None:
    engine = AsyncEngine(postgres_backend(conninfo, schema=schema()))
    loops: weakref.WeakSet[Any] = weakref.WeakSet()
    idle: list[Any] = []

    async def handler(permit: Permit) -> Answer:
        return MADE

    async def story(name: str) -> list[Any]:
        loops.add(asyncio.get_running_loop())
        assert (await engine.run(command(name), handler)).answer == MADE
        return [connection for connection, _ in engine.backend.driver._loop()._connections.idle]

    async def last() -> None:
        await story("last")
        assert all(connection.closed for connection in idle)
        gc.collect()
        assert len(loops) == 1
        await engine.close()

    for number in range(LOOPS):
        idle += asyncio.run(story(str(number)))
    assert len(idle) == LOOPS
    asyncio.run(last())
