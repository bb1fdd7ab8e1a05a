"""A database of its own for each test, and engines on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bulk.fellows import KINDS, Fellow, Home, mariadb_home, postgres_home, sqlite_home


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def home(kind: str, tmp_path: Path) -> Home:
    if kind.startswith("sqlite"):
        return sqlite_home(str(tmp_path / "bulk.db"))
    return postgres_home() if "pg" in kind else mariadb_home()


@pytest.fixture
def make_fellow(kind: str, home: Home) -> Iterator[Callable[..., Fellow]]:
    """Engines on the database, each as in its own process."""
    made: list[Fellow] = []

    def make(**options: Any) -> Fellow:
        made.append(Fellow(kind, home, **options))
        return made[-1]

    yield make
    for fellow in made:
        fellow.close()
