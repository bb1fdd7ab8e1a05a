"""What looks for open records on SQLite walks their small index, however many records are settled."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from semel.stores.sql.statements import Statement, statements
from semel.stores.sqlite.store import SQL
from tests.servers.files import migrated_file

LOOKS: dict[str, Statement] = {
    **{name: SQL[name] for name in ("count_listed", "find_open", "turn", "find_lapsed")},
    "find_abandoned": statements("semel.steps", "sql/sqlite_steps.sql")["find_abandoned"],
    "records_open": statements("semel.sealing", "sql/sqlite_seals.sql")["records_open"],
}


FORMER = "CREATE INDEX semel_record_open ON semel_record (state, lease_until) WHERE state IN (1, 2, 6)"


@pytest.fixture(params=["made now", "made before"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    migrated_file(tmp_path / "semel.db")
    with closing(sqlite3.connect(tmp_path / "semel.db", isolation_level=None)) as connection:
        if request.param == "made before":
            connection.execute("DROP INDEX semel_record_open")
            connection.execute(FORMER)
        yield connection


def plan_of(file: sqlite3.Connection, statement: Statement) -> list[str]:
    return [row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {statement.qmark}", [None] * len(statement.names))]


@pytest.mark.parametrize("name", LOOKS)
def test_a_look_for_open_records_walks_their_index(name: str, file: sqlite3.Connection) -> None:
    tables = [step for step in plan_of(file, LOOKS[name]) if "semel_record" in step]
    assert tables
    assert all("INDEX semel_record_open" in step for step in tables), tables


def test_the_reaper_reads_what_has_lapsed_alone_and_in_order(file: sqlite3.Connection) -> None:
    [step] = plan_of(file, SQL["find_lapsed"])
    assert step.endswith("semel_record_open (state=? AND lease_until<?)")


@pytest.mark.parametrize("name", ["insert_claim", "settle", "settle_answered", "write_record"])
def test_a_write_makes_no_table_for_itself(name: str, tmp_path: Path) -> None:
    """A list of three constants in an index's condition would be a b-tree of its own, at each row."""
    migrated_file(tmp_path / "semel.db")
    with closing(sqlite3.connect(tmp_path / "semel.db")) as connection:
        statement = SQL[name]
        program = connection.execute(f"EXPLAIN {statement.qmark}", [None] * len(statement.names)).fetchall()
    assert {step[1] for step in program} >= {"MakeRecord", "IdxInsert"}
    assert "OpenEphemeral" not in {step[1] for step in program}


@pytest.mark.parametrize("name", ["due", "overdue"])
def test_a_look_for_open_imports_walks_their_index(name: str, file: sqlite3.Connection) -> None:
    tables = [
        step for step in plan_of(file, statements("semel.imports", "sql/imports.sql")[name]) if "TEMP" not in step
    ]
    assert len(tables) == 1
    assert "INDEX semel_import_due" in tables[0]
