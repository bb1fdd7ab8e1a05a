"""Django's ``atomic()`` block on SQLite: record and writes are one commit of Django's."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings
from django.db import connections, transaction

from semel import Engine, Policy
from semel.core.model import Replay, State
from semel.errors import EarlyCommit, JoinRefused, RequestTooLarge, SemelError, StoreUnavailable
from semel.testing.clock import SettableClock
from tests.atomic.conftest import Outside
from tests.engine.drivers import sqlite
from tests.engine.shells import MADE, command

ALIAS = "semel-sqlite"
ATOMIC = Policy(effects="atomic")
WHAT = command(policy=ATOMIC)


@pytest.fixture
def engine(file: Path, clock: SettableClock) -> Iterator[Engine]:
    with closing(Engine(sqlite(file, clock, busy_seconds=0.2))) as made:
        yield made


def connect(file: Path, **options: Any) -> Any:
    if not settings.configured:
        settings.configure()
        django.setup()
    wanted = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file), "OPTIONS": {"timeout": 0.1, **options}}
    connections.databases[ALIAS] = connections.configure_settings({"default": wanted})["default"]
    if hasattr(connections._connections, ALIAS):
        del connections[ALIAS]
    return connections[ALIAS]


@pytest.fixture(params=["DEFERRED", "IMMEDIATE"])
def connection(request: pytest.FixtureRequest, file: Path) -> Iterator[Any]:
    made = connect(file, transaction_mode=request.param)
    yield made
    made.close()


def view(engine: Engine, connection: Any, n: int = 1) -> bool:
    with transaction.atomic(using=ALIAS), engine.atomic(connection, WHAT) as once:
        if not once.replayed:
            write(connection, n)
            once.answer = MADE
        assert once.answer == MADE
    return bool(once.replayed)


def write(connection: Any, n: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effect VALUES (%s)", [n])


def test_no_block_and_a_savepoint_are_refused(engine: Engine, connection: Any, outside: Outside) -> None:
    with pytest.raises(JoinRefused, match=r"with transaction\.atomic"):
        engine.atomic(connection, WHAT).__enter__()
    with transaction.atomic(using=ALIAS):
        write(connection, 2)
        with transaction.atomic(using=ALIAS), pytest.raises(JoinRefused, match="savepoint"):
            engine.atomic(connection, WHAT).__enter__()
    assert (outside.rows(), outside.states) == ([2], [])


def test_a_busy_file_is_reported_and_nothing_happened(
    engine: Engine, file: Path, outside: Outside, clock: SettableClock
) -> None:
    connection = connect(file)

    def attempt() -> SemelError | None:
        try:
            view(engine, connection)
        except SemelError as error:
            return error
        return None

    with closing(connected_raw(file)) as other:
        other.execute("BEGIN IMMEDIATE")
        told = attempt()
        assert isinstance(told, StoreUnavailable)
        assert "locked by another writer" in str(told)
    assert attempt() is None
    connection.close()
    assert (outside.rows(), outside.states) == ([1], [State.SUCCEEDED])


def connected_raw(file: Path) -> Any:

    return sqlite3.connect(file, isolation_level=None)


def test_an_early_commit_is_reported(engine: Engine, connection: Any, outside: Outside) -> None:
    def commits() -> None:
        with transaction.atomic(using=ALIAS), engine.atomic(connection, WHAT) as once:
            write(connection, 1)
            connection.connection.commit()
            once.answer = MADE

    with pytest.raises(EarlyCommit):
        commits()
    assert (outside.rows(), outside.states) == ([1], [State.UNKNOWN])


def test_an_attached_file_is_refused(engine: Engine, connection: Any, outside: Outside, tmp_path: Path) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ATTACH '{tmp_path / 'biz.db'}' AS biz")
    with pytest.raises(JoinRefused, match="another database file"):
        view(engine, connection)
    assert outside.states == []


def test_a_command_that_breaks_a_limit_is_refused_unless_its_key_is_on_record(
    engine: Engine, connection: Any, outside: Outside
) -> None:
    broken = replace(WHAT, refusal=RequestTooLarge("the body is too long"))

    def attempt() -> bool:
        with transaction.atomic(using=ALIAS), engine.atomic(connection, broken) as once:
            return bool(once.replayed)

    with pytest.raises(RequestTooLarge):
        attempt()
    assert (outside.rows(), outside.states) == ([], [])
    assert view(engine, connection) is False
    assert attempt() is True


def test_a_refusal_is_stored_after_the_rollback(engine: Engine, connection: Any, outside: Outside) -> None:
    with transaction.atomic(using=ALIAS):
        block = engine.atomic(connection, WHAT)
        block.__enter__()
        write(connection, 1)
        block.__exit__(ValueError)
        transaction.set_rollback(True, using=ALIAS)
    assert block.refuse(MADE) is None
    assert (outside.rows(), outside.states) == ([], [State.FAILED_REPLAYABLE])
    assert view(engine, connection) is True
    assert isinstance(block.refuse(MADE), Replay)
