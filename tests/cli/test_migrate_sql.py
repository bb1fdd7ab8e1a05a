"""`semel migrate --sql`: what a database's owner runs by hand is what `semel migrate` would have run."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import psycopg
import pymysql
import pytest

from semel import Engine
from semel.cli.main import main
from tests.engine.shells import MADE, command
from tests.servers import mariadb, postgres
from verification.subjects.mariadb import mariadb_subject
from verification.subjects.postgres import empty_schema

Run = Callable[[Sequence[str]], None]


def on_sqlite(folder: Path) -> tuple[str, Run]:
    file = folder / "semel.db"

    def run(statements: Sequence[str]) -> None:
        assert not file.exists()  # printing made nothing
        with closing(sqlite3.connect(file, isolation_level=None)) as db:
            for statement in statements:
                db.execute(statement)

    return f"sqlite:///{file}", run


def on_postgres(folder: Path) -> tuple[str, Run]:
    empty_schema(postgres.postgres(), postgres.schema())

    def run(statements: Sequence[str]) -> None:
        with psycopg.connect(postgres.postgres(), autocommit=True) as db:
            for statement in statements:
                db.execute(statement.encode())

    return f"{postgres.postgres()}?schema={postgres.schema()}", run


def on_mariadb(folder: Path) -> tuple[str, Run]:
    server = mariadb.mariadb()
    mariadb_subject(server, None).backend.driver.close()  # an own database, without tables below

    def connect() -> pymysql.Connection:
        return pymysql.connect(
            host=server.host, port=server.port, user=server.user, password=server.password, database=server.database
        )

    with closing(connect()) as db, db.cursor() as cursor:
        cursor.execute("SHOW TABLES")
        for (table,) in cursor.fetchall():
            cursor.execute(f"DROP TABLE `{table}`")

    def run(statements: Sequence[str]) -> None:
        with closing(connect()) as db, db.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            db.commit()

    return f"mariadb://{server.user}:{server.password}@{server.host}:{server.port}/{server.database}", run


@pytest.mark.parametrize("make", [on_sqlite, on_postgres, pytest.param(on_mariadb, marks=mariadb.MARK)])
def test_a_database_that_was_made_by_hand_needs_no_migration(
    make: Callable[[Path], tuple[str, Run]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, run = make(tmp_path)
    assert main(["migrate", "--sql", "--json", "--url", url]) == 0
    statements = json.loads(capsys.readouterr().out)["statements"]
    assert main(["migrate", "--sql", "--url", url]) == 0
    printed = capsys.readouterr().out.split("\n", 1)[1].split(";\n")
    assert len(printed) - 1 == len(statements)  # each one ends a line
    run(statements)
    assert main(["migrate", "--sql", "--url", url]) == 0
    assert capsys.readouterr().out == "-- the store is up to date: nothing to do\n"
    assert main(["migrate", "--url", url]) == 0
    assert "nothing to do" in capsys.readouterr().out
    with closing(Engine.connect(url)) as engine:
        engine.open()
        assert not engine.run(command(f"k-{os.getpid()}"), lambda permit: MADE).replayed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sql", "--url", "redis://127.0.0.1:1"], "--sql: migrations as SQL need a SQL database"),
        (["--sql", "--records-may-be-lost", "--url", "sqlite:///x.db"], "exclude each other"),
    ],
)
def test_stores_without_sql_cannot_print_migrations(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate", *arguments]) != 0
    assert said in capsys.readouterr().err
