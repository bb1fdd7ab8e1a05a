"""If SQLite refuses a commit because of the handler's writes, the error says that the handler must change."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from semel.errors import HandlerRefused
from semel.stores.sqlite.connection import store_error


def test_a_deferred_constraint_that_fails_at_the_commit_has_a_remedy() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript("PRAGMA foreign_keys=ON; CREATE TABLE effect (n INTEGER UNIQUE)")
        connection.execute("CREATE TABLE child (n INTEGER REFERENCES effect (n) DEFERRABLE INITIALLY DEFERRED)")
        connection.execute("INSERT INTO child VALUES (99)")
        with pytest.raises(sqlite3.IntegrityError) as refused:
            connection.commit()
        said = store_error(refused.value, committing=True)
    assert type(said) is HandlerRefused
    assert "FOREIGN KEY constraint failed" in str(said)
    assert "correct the handler" in str(said)
    assert "doctor" not in str(said)
