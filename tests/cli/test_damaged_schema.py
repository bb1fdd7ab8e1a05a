"""Dropped tables and columns: `semel doctor` and `semel migrate` name them, on every SQL database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from semel import Engine
from semel.admin.doctor.schema import missing
from semel.cli.main import main
from tests.servers import mariadb, postgres

Capture = pytest.CaptureFixture[str]
Does = Callable[[str], Any]
SCHEMA = f"{postgres.schema()}_damaged"


@pytest.fixture(params=["sqlite", "postgres", pytest.param("mariadb", marks=mariadb.MARK)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Does]]:
    """The URL of a store, and what does something to its database."""
    if request.param == "sqlite":
        with closing(sqlite3.connect(tmp_path / "semel.db")) as file:
            yield f"sqlite:///{tmp_path}/semel.db", file.execute
    elif request.param == "postgres":
        with psycopg.connect(postgres.postgres(), autocommit=True, options=f"-c search_path={SCHEMA}") as connection:
            connection.execute(f"CREATE SCHEMA {SCHEMA}")
            yield f"{postgres.postgres()}?schema={SCHEMA}", connection.execute
            connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
    else:
        run = mariadb.mariadb()
        name = f"{run.database}_damaged"
        with closing(mariadb.connect(run.port)) as link, link.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
            cursor.execute(f"USE {name}")
            yield mariadb.url(replace(run, database=name)), cursor.execute
            cursor.execute(f"DROP DATABASE {name}")


def run_doctor(capsys: Capture, *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main([*arguments])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_missing_tables_and_columns_are_named(place: tuple[str, Does], capsys: Capture) -> None:
    url, does = place
    assert run_doctor(capsys, "migrate", "--url", url)[0] == 0
    with closing(Engine.connect(url)) as engine:
        assert missing(engine, engine.store.migrations) == ""
    does("ALTER TABLE semel_item RENAME COLUMN state TO gone")
    does("ALTER TABLE semel_record RENAME TO semel_lost")
    for command in ("doctor", "migrate"):
        code, said = run_doctor(capsys, command, "--url", url)
        assert code == 3
        assert "semel_item.state, the table semel_record cannot be found" in said
        assert "restore them all from one backup" in said
    does("ALTER TABLE semel_lost RENAME TO semel_record")
    does("ALTER TABLE semel_item RENAME COLUMN gone TO state")
    assert "version 3, nothing pending" in run_doctor(capsys, "doctor", "--url", url)[1]
    assert run_doctor(capsys, "migrate", "--url", url) == (0, "the store is up to date: nothing to do\n")
