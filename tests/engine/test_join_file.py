"""A join holds the record and the user's writes in one file, or it is refused."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from semel import Command, Engine, Policy, Scope
from semel.errors import JoinRefused

ORDER = Command(Scope("acme", "alice", "orders.create"), "key-1", bytes(32), "recipe", Policy(effects="atomic"))


def engine_of(path: Path) -> Engine:
    engine = Engine.connect(f"sqlite:///{path}")
    engine.migrate()
    return engine


def test_another_file_is_refused_though_it_has_the_tables(tmp_path: Path) -> None:
    engine, other = engine_of(tmp_path / "one.db"), engine_of(tmp_path / "two.db")
    with closing(sqlite3.connect(tmp_path / "two.db")) as connection:
        with pytest.raises(JoinRefused, match="another file"), engine.atomic(connection, ORDER):
            raise AssertionError("the block must not be entered")
        assert not connection.in_transaction
    engine.close()
    other.close()


def test_the_same_file_by_another_name_is_joined(tmp_path: Path) -> None:
    engine = engine_of(tmp_path / "one.db")
    (tmp_path / "link.db").symlink_to(tmp_path / "one.db")
    with closing(sqlite3.connect(tmp_path / "link.db")) as connection:
        with engine.atomic(connection, ORDER) as once:
            assert not once.replayed
        connection.commit()
        with engine.atomic(connection, ORDER) as again:
            assert again.replayed
    engine.close()


def test_a_database_in_memory_is_refused(tmp_path: Path) -> None:
    engine = engine_of(tmp_path / "one.db")
    with (
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(JoinRefused, match="same file"),
        engine.atomic(connection, ORDER),
    ):
        raise AssertionError("the block must not be entered")
    engine.close()
