"""Migrated SQLite files for tests: one is made in each process, and copied for each test."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path

from semel import Engine


def migrated_file(path: Path | str, *statements: str) -> None:
    """A file with Semel's tables and no record in it, at ``path``, which must not exist.

    Parameters: ``statements`` make the application's own tables in it. Every such file of a process has the same store
    id; a test of ids migrates one of its own.
    """
    target = Path(path)
    target.touch(0o600, exist_ok=False)
    target.write_bytes(_migrate(statements))


@cache
def _migrate(statements: tuple[str, ...]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "migrated.db"
        with closing(Engine.connect(f"sqlite:///{path}?synchronous=NORMAL")) as engine:
            engine.migrate()
        with closing(sqlite3.connect(path)) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return path.read_bytes()
