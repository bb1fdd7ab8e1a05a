"""One engine on one loop after the other, as ``asyncio.run`` in each of a worker's tasks makes them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Permit, Policy
from semel.stores.postgres.url import postgres_backend
from tests.engine.shells import MADE, command
from tests.postgres.conftest import Outside
from tests.servers.postgres import schema
from tests.servers.redis import eventually

LOOPS = 5


@pytest.fixture
def user(outside: Outside) -> Iterator[str]:
    """A user of the store whose connections are not shared."""
    name = f"loops_{schema()}"
    outside.connection.execute(f"CREATE ROLE {name} SUPERUSER LOGIN")
    yield name
    outside.connection.execute(f"DROP ROLE {name}")


@pytest.mark.parametrize("asyncpg", [False, True], ids=["psycopg", "asyncpg"])
@pytest.mark.parametrize("effects", ["external", "atomic"])
def test_a_loop_that_is_over_keeps_neither_itself_nor_a_connection(
    effects: str, asyncpg: bool, conninfo: str, outside: Outside, user: str
) -> None:
    own = conninfo.replace("postgres@", f"{user}@")
    engine = AsyncEngine(postgres_backend(own, asyncpg=asyncpg, schema=schema()))
    loops: weakref.WeakSet[Any] = weakref.WeakSet()

    async def handler(permit: Permit) -> Answer:
        return MADE

    async def story(key: str) -> None:
        loops.add(asyncio.get_running_loop())
        assert (await engine.run(command(key, policy=Policy.of(effects=effects)), handler)).answer == MADE

    async def last() -> None:
        await story("last")
        await engine.close()
        gc.collect()
        assert len(loops) == 1

    def connections() -> int:
        [(count,)] = outside.fetch(f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{user}'")
        return int(count)

    for number in range(LOOPS):
        asyncio.run(story(str(number)))
        eventually(lambda: 0 < connections() <= 2)  # the present loop's: the driver's, and the unit's
    asyncio.run(last())
    eventually(lambda: connections() == 0)
