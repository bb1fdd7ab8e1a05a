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
    **{name: SQL[name] for name in ("count_listed", "find_open", "find_earliest", "find_lapsed")},
    "find_abandoned": statements("semel.steps", "sql/sqlite_steps.sql")["find_abandoned"],
    "records_open": statements("semel.sealing", "sql/sqlite_seals.sql")["records_open"],
}


@pytest.fixture
def file(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    migrated_file(tmp_path / "semel.db")
    with closing(sqlite3.connect(tmp_path / "semel.db", isolation_level=None)) as connection:
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
