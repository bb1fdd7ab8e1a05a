"""Stores for the console's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from semel import Engine
from tests.servers.postgres import postgres


def new_database() -> str:
    """A database of the run's PostgreSQL for one test alone."""
    url, name = postgres(), f"console_{uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
    return f"{url.rpartition('/')[0]}/{name}"


def migrate(url: str) -> Engine:
    engine = Engine.connect(url)
    engine.migrate()
    return engine


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    url = f"sqlite:///{tmp_path}/semel.db" if request.param == "sqlite" else new_database()
    with migrate(url) as opened:
        yield opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Engine]:
    with migrate(f"sqlite:///{tmp_path}/semel.db") as opened:
        yield opened
