"""One engine on one loop after the other, as ``asyncio.run`` in each of a worker's tasks makes them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Permit, Policy
from semel.stores.mariadb.protocol import MariadbServer
from semel.stores.mariadb.url import mariadb_backend
from tests.engine.shells import MADE, command
from tests.mariadb.conftest import Outside
from tests.servers.redis import eventually

LOOPS = 5


@pytest.mark.parametrize("effects", ["external", "atomic"])
def test_a_loop_that_is_over_keeps_neither_itself_nor_a_connection(
    effects: str, server: MariadbServer, outside: Outside
) -> None:
    engine = AsyncEngine(mariadb_backend(server))
    loops: weakref.WeakSet[Any] = weakref.WeakSet()

    async def handler(permit: Permit) -> Answer:
        return MADE

    async def story(name: str) -> None:
        loops.add(asyncio.get_running_loop())
        assert (await engine.run(command(name, policy=Policy.of(effects=effects)), handler)).answer == MADE

    async def last() -> None:
        await story("last")
        await engine.close()
        gc.collect()
        assert len(loops) == 1

    for number in range(LOOPS):
        asyncio.run(story(str(number)))
        eventually(lambda: 0 < len(outside.others()) <= 2)  # the present loop's: the driver's, and the unit's
    asyncio.run(last())
    eventually(lambda: outside.others() == [])
