"""The bookings service (FastAPI, SQLAlchemy, PostgreSQL) as its clients meet it: the whole contract over HTTP."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from semel import Engine
from tests.examples.serving import Program, serving
from tests.servers.postgres import postgres

APP = "examples.bookings.app:app"
ROOM = {"room": 7, "night": "2027-05-01"}


@pytest.fixture
def database() -> Iterator[str]:
    """A migrated database of its own."""
    name = f"semel_bookings_{os.getpid()}"
    with psycopg.connect(postgres(), autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        admin.execute(f"CREATE DATABASE {name}")
    url = postgres().rpartition("/")[0] + f"/{name}"
    with closing(Engine.connect(url)) as engine:
        engine.migrate()
    yield url
    with psycopg.connect(postgres(), autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def service(database: str, tmp_path: Path) -> Iterator[Program]:
    with serving(tmp_path / "served", APP, {"DATABASE_URL": database}) as program:
        yield program


def count(database: str) -> tuple[Any, ...]:
    """Bookings, events, records."""
    with psycopg.connect(database) as connection:
        found = connection.execute(
            "SELECT (SELECT count(*) FROM bookings), (SELECT count(*) FROM semel_event), "
            "(SELECT count(*) FROM semel_record)"
        ).fetchone()
        assert found is not None
        return found


def test_a_booking_is_made_once_and_replayed(service: Program, database: str) -> None:
    first, again = (service.post("/bookings", ROOM, "key-1") for _ in range(2))
    assert (first.status, first.json, first.replayed) == (201, {**ROOM, "id": 1}, False), service.log
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    assert service.get("/bookings") == [first.json]
    assert count(database) == (1, 1, 1)


def test_the_operations_resource_says_that_it_succeeded(service: Program) -> None:
    service.post("/bookings", ROOM, "key-1")
    status = service.get("/operations?key=key-1")
    assert (status["operation"], status["state"], status["status"]) == ("bookings.create", "SUCCEEDED", 201)
    assert service.get(f"/operations/{status['operationId']}")["state"] == "SUCCEEDED"


def test_concurrent_duplicates_wait_and_all_get_the_first_answer(service: Program, database: str) -> None:
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: service.post("/bookings", ROOM, "key-1"), range(10)))
    assert {answer.status for answer in answers} == {201}, service.log
    assert len({answer.body for answer in answers}) == 1
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 9
    assert count(database) == (1, 1, 1)


def test_another_request_under_the_key_is_refused(service: Program, database: str) -> None:
    service.post("/bookings", ROOM, "key-1")
    assert service.post("/bookings", {**ROOM, "room": 8}, "key-1").status == 422
    assert count(database) == (1, 1, 1)


def test_a_refusal_is_rolled_back_and_replayed(service: Program, database: str) -> None:
    service.post("/bookings", ROOM, "key-1")
    first, again = (service.post("/bookings", ROOM, "key-2") for _ in range(2))
    assert (first.status, first.replayed, again.status, again.replayed) == (409, False, 409, True), service.log
    assert count(database) == (1, 1, 2)


def test_a_handler_that_raises_leaves_nothing_and_its_key_is_free(service: Program, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("ALTER TABLE bookings ADD CHECK (room < 100)")
        first = service.post("/bookings", {**ROOM, "room": 100}, "key-1")
        assert (first.status, count(database)) == (409, (0, 0, 1))  # the handler calls any broken rule a refusal
        admin.execute("ALTER TABLE bookings RENAME COLUMN guest TO visitor")
        broken = service.post("/bookings", ROOM, "key-2")
        assert (broken.status, count(database)) == (500, (0, 0, 1)), service.log
        admin.execute("ALTER TABLE bookings RENAME COLUMN visitor TO guest")
    again = service.post("/bookings", ROOM, "key-2")
    assert (again.status, again.replayed) == (201, False), service.log


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_kill_around_the_commit_leaves_all_of_it_or_nothing(database: str, tmp_path: Path, dies: str) -> None:
    environment = {"DATABASE_URL": database, "DIES": dies}
    with serving(tmp_path / "dying", "tests.examples.bookings_dying:app", environment) as dying:
        assert dying.post("/bookings", ROOM, "key-1").status == 0
    assert count(database) == ((0, 0, 0) if dies == "before" else (1, 1, 1))
    with serving(tmp_path / "served", APP, environment) as service:
        answer = service.post("/bookings", ROOM, "key-1")
        assert (answer.status, answer.replayed) == (201, dies == "after"), service.log
    assert count(database) == (1, 1, 1)
