"""A statement that two databases share is written once."""

from __future__ import annotations

from pathlib import Path

import pytest

import semel
from semel.stores.sql import dialect
from semel.stores.sql.statements import statements
from semel.stores.sql.tables import NOUNS as TABLES
from semel.stores.sql.tables import Noun

NOUNS = sorted(dialect._ROOMS)


@pytest.mark.parametrize("noun", NOUNS)
def test_no_statement_is_written_twice(noun: str) -> None:
    room = dialect._ROOMS[noun]
    shared = statements(room, f"sql/{noun}.sql")
    sqlite, mariadb = (statements(room, f"sql/{database}_{noun}.sql") for database in ("sqlite", "mariadb"))
    assert shared
    assert not shared.keys() & (sqlite.keys() | mariadb.keys())
    assert [name for name in sqlite.keys() & mariadb.keys() if sqlite[name].text == mariadb[name].text] == []


@pytest.mark.parametrize("noun", NOUNS)
def test_both_databases_use_the_shared_statements(noun: str) -> None:
    shared = statements(dialect._ROOMS[noun], f"sql/{noun}.sql")
    for database in (dialect.SQLITE, dialect.MARIADB):
        assert {name: database.statements(noun)[name] for name in shared} == dict(shared)


@pytest.mark.parametrize("database", ["postgres", "mariadb"])
def test_the_statement_of_turns_exists_once(database: str) -> None:
    package = Path(semel.__file__).parent
    takes = [path for path in package.rglob("*.sql") if "INSERT INTO semel_turn" in path.read_text("utf-8")]
    assert [path.name for path in takes if database in str(path)] == ["turn.sql"]
    for room, file in (
        (f"semel.stores.{database}", "sql/upkeep.sql"),
        ("semel.outbox", f"sql/{database}_partitions.sql"),
    ):
        assert "INSERT INTO semel_turn" in statements(room, file)["turn"].text


@pytest.mark.parametrize("database", [dialect.SQLITE, dialect.POSTGRES, dialect.MARIADB], ids=lambda one: str(one.name))
@pytest.mark.parametrize("table", TABLES, ids=lambda table: str(table.name))
def test_rows_are_copied_with_the_columns_that_the_code_states(database: dialect.Dialect, table: Noun) -> None:
    sql = database.statements("copies")
    put = sql[f"{table.name}_put"]
    assert {column.replace("sha256", "digest") for column in table.columns} <= set(put.names)
    if table.name != "steps":  # they are columns of a record, which is there already
        assert split_columns(put.text.partition("(")[2].partition(")")[0]) == list(table.columns)
    more = [] if table.order == table.key else list(table.order)
    for name in ("page", "there"):
        read = split_columns(sql[f"{table.name}_{name}"].text.partition("SELECT")[2].partition("FROM")[0])
        assert read in (list(table.columns), [*table.columns, *more])


def split_columns(text: str) -> list[str]:
    return [column.strip().rpartition(".")[2].partition("::")[0] for column in text.split(",")]
