"""PostgreSQL 15, the oldest that is tested: everything else here is as in ``tests/postgres``."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from semel import Engine
from semel.stores.postgres.url import postgres_backend
from semel.testing.postgres import empty_schema
from tests.postgres.conftest import fellow, kind, make_fellow, outside, relay
from tests.servers.postgres import postgres15, schema

__all__ = ["fellow", "kind", "make_fellow", "outside", "relay"]


@pytest.fixture
def conninfo() -> str:
    """This run's old server, with a new schema in it: migrated, and with the application's own table."""
    server = postgres15()
    empty_schema(server, schema())
    with closing(Engine(postgres_backend(server, schema=schema()))) as engine:
        engine.migrate()
    with psycopg.connect(server, autocommit=True, options=f"-c search_path={schema()}") as connection:
        connection.execute("CREATE TABLE effect (n integer PRIMARY KEY)")
    return server
