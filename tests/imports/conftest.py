"""A database of its own for each test, and imports on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bulk.fellows import Home, mariadb_home, postgres_home, sqlite_home
from tests.imports.places import KINDS, Place


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def home(kind: str, tmp_path: Path) -> Home:
    if kind.startswith("sqlite"):
        return sqlite_home(str(tmp_path / "imports.db"))
    return postgres_home() if "pg" in kind else mariadb_home()


@pytest.fixture
def place(kind: str, home: Home) -> Iterator[Place]:
    made = Place(kind, home)
    yield made
    made.close()


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    """On SQLite alone, where the database makes no difference."""
    made = Place("sqlite-async", sqlite_home(str(tmp_path / "imports.db")))
    yield made
    made.close()
