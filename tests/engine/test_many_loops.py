"""One engine on 500 event loops, one after the other, as ``asyncio.run`` in each of a worker's tasks makes them."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import stat
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, AsyncEngine, Permit, Policy
from semel.stores.backend import Backend
from semel.testing.clock import SettableClock
from tests.engine.drivers import memory, sqlite
from tests.engine.shells import MADE, command
from tests.servers import mariadb, redis, sentinel
from tests.servers.needed import needs
from tests.servers.postgres import postgres, schema
from verification.subjects.mariadb import mariadb_subject
from verification.subjects.postgres import postgres_subject
from verification.subjects.redis import redis_subject

LOOPS = 500
SETTLED = 100  # after so many, all caches are filled
HOLDERS = 4  # engine, driver, units and the present loop: each may still hold the loop that it served last
STORES = [
    *("memory", "sqlite", "psycopg", "asyncpg", "valkey", "cluster"),
    pytest.param("asyncmy", marks=needs("mariadb")),
    pytest.param("sentinel", marks=needs("redis")),
]


@pytest.fixture(params=STORES)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """A store on each client library."""
    clock = SettableClock()
    match request.param:
        case "memory":
            yield memory(clock)
        case "sqlite":
            yield sqlite(tmp_path / "semel.db", clock)
        case "psycopg" | "asyncpg":
            yield postgres_subject(postgres(), schema(), clock, asyncpg=request.param == "asyncpg").backend
        case "asyncmy":
            yield mariadb_subject(mariadb.mariadb(), None).backend
        case "sentinel":
            port, name = sentinel.start_watching(), sentinel.SERVICE
            yield redis_subject("127.0.0.1", port, redis.prefix(), clock, service=name).backend
        case store:
            port = redis.valkey() if store == "valkey" else redis.cluster()
            yield redis_subject("127.0.0.1", port, redis.prefix(), clock, cluster=store == "cluster").backend


def open_sockets() -> int:
    """How many sockets this process holds."""
    count = 0
    for number in os.listdir("/dev/fd"):
        try:
            count += stat.S_ISSOCK(os.fstat(int(number)).st_mode)
        except OSError:  # the folder's own descriptor
            continue
    return count


class Usage:
    """What is there between two loops."""

    def __init__(self, loops: weakref.WeakSet[Any], tasks: weakref.WeakSet[Any]) -> None:
        gc.collect()
        self.sockets = open_sockets()
        self.loops = len(loops)
        self.tasks = len(tasks)
        self.blocks = sys.getallocatedblocks()


def test_500_loops_leave_no_connections(backend: Backend) -> None:
    engine = AsyncEngine(replace(backend, accepts_loss=True))  # the server behind the Sentinels keeps no file
    effects = ["external", "atomic"] if backend.unit_async is not None else ["external"]
    loops: weakref.WeakSet[Any] = weakref.WeakSet()
    tasks: weakref.WeakSet[Any] = weakref.WeakSet()
    turns = itertools.count()

    async def handler(permit: Permit) -> Answer:
        return MADE

    async def story() -> None:
        loops.add(asyncio.get_running_loop())
        effect = effects[next(turns) % len(effects)]  # one key each: what is stored does not grow
        assert (await engine.run(command(effect, policy=Policy.of(effects=effect)), handler)).answer == MADE
        tasks.update(asyncio.all_tasks())

    asyncio.run(engine.migrate())
    for _ in range(SETTLED):
        asyncio.run(story())
    early = Usage(loops, tasks)
    for _ in range(LOOPS - SETTLED):
        asyncio.run(story())
    late = Usage(loops, tasks)
    assert late.sockets <= early.sockets + 1  # idle ones of the last loops
    assert late.loops <= HOLDERS  # with their timers; what is theirs is dropped when a later loop needs the same
    assert late.tasks <= HOLDERS
    assert late.blocks - early.blocks < LOOPS - SETTLED  # less than one small object for each loop
    asyncio.run(engine.close())
    assert open_sockets() <= late.sockets
