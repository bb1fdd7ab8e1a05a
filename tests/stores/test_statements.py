"""A statement that two databases share is written once."""

from __future__ import annotations

import pytest

from semel.stores.sql import dialect
from semel.stores.sql.statements import statements

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
def test_both_databases_have_what_they_share(noun: str) -> None:
    shared = statements(dialect._ROOMS[noun], f"sql/{noun}.sql")
    for database in (dialect.SQLITE, dialect.MARIADB):
        assert {name: database.statements(noun)[name] for name in shared} == dict(shared)
