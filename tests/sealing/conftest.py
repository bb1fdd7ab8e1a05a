"""Engines of every store and both colours, on a clock of the test's, with a ring of sealing keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from semel import Answer, Command, Policy, Scope, Sealer
from semel.core.model import Find, Record
from semel.stores.backend import Backend
from semel.stores.mariadb.url import mariadb_backend
from semel.stores.postgres.url import postgres_backend
from semel.stores.redis.url import redis_backend
from semel.testing.clock import SettableClock
from tests.engine.drivers import memory, sqlite
from tests.engine.shells import Mode, Shell
from tests.servers import redis as redis_servers
from tests.servers.mariadb import mariadb
from tests.servers.postgres import postgres, schema
from verification.subjects.mariadb import mariadb_subject
from verification.subjects.postgres import empty_schema

OLD: Final = bytes(32)
NEW: Final = bytes(range(32))
RING: Final = {"2026": NEW}
SECRET: Final = "4111-1111-1111-1111"
PAID: Final = Answer(
    201,
    ((b"content-type", b"application/json"), (b"x-token", SECRET.encode())),
    b'{"id": 7, "card": {"number": "4111-1111-1111-1111"}}',
)
KINDS: Final = (
    *("memory", "memory-async", "sqlite", "sqlite-async", "psycopg", "psycopg-async", "asyncpg", "pymysql", "asyncmy"),
    *("redis", "redis-async", "cluster"),
)


def command(key: str = "k", policy: Policy | None = None, **options: Any) -> Command:
    made = policy if policy is not None else Policy(**options)
    return Command(Scope("acme", "alice", "pay"), key, bytes(32), "1.tests", made)


class Place:
    """One store with nothing in it, and the processes on it."""

    def __init__(self, kind: str, folder: Path, stack: ExitStack) -> None:
        self.kind = kind
        self.folder = folder
        self.clock = SettableClock()
        self._stack = stack
        self._memory = memory(self.clock) if kind.startswith("memory") else None
        if kind in ("pymysql", "asyncmy"):
            _ = mariadb_subject(mariadb(), None)
        elif kind in ("psycopg", "psycopg-async", "asyncpg"):
            empty_schema(postgres(), schema())
        self._prefix = redis_servers.prefix() if kind in ("redis", "redis-async", "cluster") else ""

    def backend(self) -> Backend:
        match self.kind:
            case "memory" | "memory-async":
                assert self._memory is not None
                return self._memory
            case "sqlite" | "sqlite-async":
                return sqlite(self.folder / "semel.db", self.clock)
            case "pymysql" | "asyncmy":
                return mariadb_backend(replace(mariadb(), clock=self.clock))
            case "redis" | "redis-async" | "cluster":
                port = redis_servers.cluster() if self.kind == "cluster" else redis_servers.valkey()
                cluster = self.kind == "cluster"
                return redis_backend(
                    (("127.0.0.1", port),), cluster=cluster, prefix=self._prefix, clock=self.clock, accepts_loss=cluster
                )
            case _:
                asyncpg = self.kind == "asyncpg"
                return postgres_backend(postgres(), asyncpg=asyncpg, schema=schema(), clock=self.clock)

    @property
    def mode(self) -> Mode:
        return "async" if self.kind in ("asyncpg", "asyncmy") or self.kind.endswith("-async") else "sync"

    def process(self, ring: dict[str, bytes] | None = RING, **options: Any) -> Shell:
        sealer = None if ring is None else Sealer(ring)
        made = Shell(self.mode, self.backend(), sealer=sealer, **options)
        made.open()
        self._stack.callback(made.close)
        return made


def rows_of(process: Shell) -> list[Record]:
    """Every record, oldest first, as the store reads it."""
    store = process.engine.store
    page = process.perform("find", lambda: store.find(Find()))
    found = process.perform("read", lambda: store.read(tuple(row.id for row in reversed(page.records))))
    return [row for row in found if row is not None]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(kind, tmp_path, stack)
