"""A message in a transaction of the user's own: the row commits and goes with it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from semel import Engine, Inbox
from semel.errors import JoinRefused
from semel.inbox.store import Receipt
from tests.bulk.fellows import Home, postgres_home, sqlite_home
from tests.servers.postgres import postgres, schema


def _connections(kind: str, tmp_path: Path) -> tuple[Home, Any]:
    if kind == "sqlite":
        path = str(tmp_path / "inbox.db")
        return sqlite_home(path), sqlite3.connect(path)
    return postgres_home(), psycopg.connect(postgres(), options=f"-c search_path={schema()}")


@pytest.mark.parametrize("kind", ["sqlite", "psycopg"])
def test_the_row_commits_with_the_users_transaction(kind: str, tmp_path: Path) -> None:
    home, connection = _connections(kind, tmp_path)
    with closing(Engine(home.backend(kind))) as engine, closing(connection):
        inbox = Inbox(engine, consumer="billing", tries_max=2)
        with inbox.within(connection, "m-1") as message:
            assert message.receipt is None
            connection.execute("INSERT INTO effect VALUES (1)")
        connection.rollback()
        assert home.effects() == []
        assert not inbox.note_failure("m-1", "no luck")
        for receipt in (None, Receipt.DUPLICATE):
            with inbox.within(connection, "m-1") as message:
                assert message.receipt is receipt
                if message.receipt is None:
                    connection.execute("INSERT INTO effect VALUES (1)")
            connection.commit()
        assert home.effects() == [1]
        assert not inbox.note_failure("m-2", "first")
        assert inbox.note_failure("m-2", "second")
        with inbox.within(connection, "m-2") as message:
            assert message.receipt is Receipt.PARKED
        connection.rollback()
        assert [parked.reason for parked in inbox.find_parked()] == ["second"]


def test_a_connection_to_another_database_is_refused(tmp_path: Path) -> None:
    home, connection = _connections("sqlite", tmp_path)
    with closing(Engine(home.backend("sqlite"))) as engine, closing(connection):
        inbox = Inbox(engine, consumer="billing")
        with (
            closing(sqlite3.connect(tmp_path / "other.db")) as other,
            pytest.raises(JoinRefused),
            inbox.within(other, "m-1"),
        ):
            pass
