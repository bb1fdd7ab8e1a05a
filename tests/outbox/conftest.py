"""An empty, migrated store of each database, and a broker that remembers everything."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from semel import Answer, Engine, Permit
from semel.outbox.event import Event
from semel.outbox.run import own_event
from semel.outbox.sinks.base import Reply
from semel.outbox.store import Events
from tests.servers import mariadb
from tests.servers.files import migrated_file
from tests.servers.postgres import postgres, schema
from tests.servers.schemas import migrated_schema
from verification.subjects.mariadb import mariadb_subject

SQLITE: Final = "sqlite"
POSTGRES: Final = "postgres"
MARIADB: Final = "mariadb"
EFFECT: Final = "CREATE TABLE effect (n INTEGER PRIMARY KEY)"


class Place:
    """A migrated, empty store, as a URL, and what another connection sees in it."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the committed rows."""
        if self.kind == SQLITE:
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as connection:
                return connection.execute(query).fetchall()
        if self.kind == POSTGRES:
            with psycopg.connect(postgres(), autocommit=True, options=f"-c search_path={schema()}") as there:
                return there.execute(query).fetchall()
        server = mariadb.mariadb()
        with mariadb.connect(server.port, database=server.database) as maria, maria.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def change(self, statement: str) -> None:
        """Write something from outside."""
        if self.kind == SQLITE:
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as connection, connection:
                connection.execute(statement)
        elif self.kind == POSTGRES:
            with psycopg.connect(postgres(), autocommit=True, options=f"-c search_path={schema()}") as there:
                there.execute(statement)
        else:
            server = mariadb.mariadb()
            with mariadb.connect(server.port, database=server.database) as maria, maria.cursor() as cursor:
                cursor.execute(statement)

    @property
    def ids(self) -> list[str]:
        """The events that are committed, in their order."""
        return [str(id) for (id,) in self.rows("SELECT id FROM semel_event ORDER BY seq")]

    @property
    def waiting(self) -> list[str]:
        """The unpublished events."""
        return [str(id) for (id,) in self.rows("SELECT id FROM semel_event WHERE published_at IS NULL ORDER BY seq")]

    def fill(self, count: int, aggregates: int = 1, topic: str = "orders") -> list[Event]:
        """Events of so many aggregates in turn, each with its number in its payload."""
        made = [own_event(None, topic, {"n": n}, None, ("order", str(n % aggregates)), None, "") for n in range(count)]
        with closing(Engine.connect(self.url)) as engine:
            engine.perform("write", lambda: Events(engine.store.dialect).write(made))  # type: ignore[attr-defined]
        return made


def make_place(kind: str, folder: Path) -> Place:
    """An empty, migrated store with an application's table."""
    if kind == SQLITE:
        migrated_file(folder / "app.db", EFFECT)
        return Place(kind, f"sqlite:///{folder}/app.db")
    if kind == POSTGRES:
        migrated_schema(postgres(), schema(), EFFECT)
        return Place(kind, f"{postgres()}?schema={schema()}")
    server = mariadb.mariadb()
    with closing(Engine(mariadb_subject(server, None).backend)) as engine:
        engine.migrate()
    mariadb.make_table(server, "effect", "n integer PRIMARY KEY")
    return Place(kind, mariadb.url(server))


@pytest.fixture(params=[SQLITE, POSTGRES, pytest.param(MARIADB, marks=mariadb.MARK)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return make_place(request.param, tmp_path)


@pytest.fixture(params=[SQLITE, POSTGRES])
def quick_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place in each of two databases, for tests in which the third would show nothing new."""
    return make_place(request.param, tmp_path)


@pytest.fixture
def engine(place: Place) -> Iterator[Engine]:
    with Engine.connect(place.url) as made:
        yield made


class Broker:
    """A sink that remembers, and does with an event what ``says`` answers for it."""

    name = "test"

    def __init__(self) -> None:
        self.arrived: list[Event] = []
        self.says: dict[str, Reply] = {}  # by id
        self.waves: list[int] = []
        self.closed = 0
        self._grew = asyncio.Event()

    async def publish(self, events: Sequence[Event]) -> list[Reply]:
        self.waves.append(len(events))
        replies = [self.says.get(event.id) for event in events]
        self.arrived += [event for event, reply in zip(events, replies, strict=True) if reply is None]
        self._grew.set()
        return replies

    async def has(self, count: int) -> None:
        """Wait until so many events have arrived."""
        async with asyncio.timeout(30):
            while len(self.arrived) < count:
                self._grew.clear()
                await self._grew.wait()

    async def close(self) -> None:
        self.closed += 1

    @property
    def ids(self) -> list[str]:
        return [event.id for event in self.arrived]


def first_arrivals(events: Sequence[Event]) -> dict[str, list[int]]:
    """The numbers of each aggregate's events, in the order of their first arrival."""
    seen: set[str] = set()
    orders: dict[str, list[int]] = {}
    for event in events:
        if event.id not in seen:
            seen.add(event.id)
            orders.setdefault(event.aggregate_id, []).append(int(event.payload.partition(b":")[2].rstrip(b"}")))
    return orders


def in_order(events: Sequence[Event]) -> bool:
    """Whether each aggregate's events arrived first in the order of their numbers."""
    return all(numbers == sorted(numbers) for numbers in first_arrivals(events).values())


def emit_one(permit: Permit) -> Answer:
    """A handler that emits one event."""
    permit.emit("orders.placed", {"n": 1}, aggregate=("order", "7"))
    return Answer(201, (), b"ordered")


def unique(name: str) -> str:
    """A name for a broker that other test processes use as well."""
    return f"{name}-{os.getpid()}"
