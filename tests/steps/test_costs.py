"""What a step costs: one commit on SQLite, one round trip on PostgreSQL's wire."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from semel import Answer, Engine
from semel.stores.postgres.url import postgres_backend
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.url import sqlite_backend
from tests.servers.postgres import postgres, schema
from tests.servers.relay import Relay, Trip
from tests.steps.conftest import Kind, Process, Run, step_command
from verification.subjects.postgres import empty_schema

OK = Answer(201, (), b"done")
STEPS_MAX = 5


async def handler(run: Run, count: int) -> Answer:
    for number in range(count):
        await run.step(f"step-{number}", lambda: "result", repeat=number % 2 == 1)
    return OK


@pytest.mark.parametrize("kind", ["sqlite", "sqlite-async"])
def test_a_step_is_one_commit(kind: Kind, tmp_path: Path) -> None:
    driver = SqliteDriver(str(tmp_path / "semel.db"), synchronous="OFF")
    with closing(Process(kind, sqlite_backend(driver, 5.0))) as process:
        process.tell(process.engine.migrate())
        for count in range(STEPS_MAX):
            before = driver.commits
            process.run(step_command(f"k{count}"), lambda run, count=count: handler(run, count))  # type: ignore[misc]
            assert driver.commits - before == count + 2


@pytest.fixture
def relay() -> Iterator[Relay]:
    empty_schema(postgres(), schema())
    with closing(Engine(postgres_backend(postgres(), schema=schema()))) as engine:
        engine.migrate()
    port = urlsplit(postgres()).port
    assert port is not None
    with closing(Relay(port)) as made:
        yield made


def name_trip(trip: Trip) -> str:
    """A round trip by what its statements do."""
    return " + ".join(
        "claim"
        if "INSERT INTO semel_record" in text
        else "step"
        if "steps =" in text
        else "settle"
        if "UPDATE semel_record" in text
        else text.strip(";")
        for text in trip
    )


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async", "asyncpg"])
def test_a_step_is_one_round_trip(kind: Kind, relay: Relay) -> None:
    backend = postgres_backend(relay.conninfo(), asyncpg=kind == "asyncpg", schema=schema())
    with closing(Process(kind, backend)) as process:
        for number in range(2):  # a server and its client have met each statement
            process.run(step_command(f"warm-{number}"), lambda run: handler(run, STEPS_MAX))
        with relay.counting() as trips:
            process.run(step_command(), lambda run: handler(run, STEPS_MAX))
        assert [name_trip(trip) for trip in trips] == ["claim", *["step"] * STEPS_MAX, "settle"]
