"""Who may read a database file that Semel creates."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.stores.sqlite.connection import open_connection


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """Set a umask under which new files are readable by all users."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


def test_a_created_file_and_its_log_are_readable_by_their_user_alone(tmp_path: Path) -> None:
    connection = open_connection(str(tmp_path / "new.db"), "FULL")
    connection.execute("CREATE TABLE a (b)")
    assert modes(tmp_path) == dict.fromkeys(("new.db", "new.db-wal", "new.db-shm"), 0o600)
    connection.close()


def test_a_file_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared.db"
    shared.touch(0o644)
    open_connection(str(shared), "FULL").close()
    assert modes(tmp_path) == {"shared.db": 0o644}


def test_a_file_that_cannot_be_created_is_reported_by_sqlite(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="unable to open database file"):
        open_connection(str(tmp_path / "missing" / "new.db"), "FULL")
