"""PostgreSQL 15, the oldest that is tested: everything else here is as in ``tests/postgres``."""

from __future__ import annotations

import pytest

from tests.postgres.conftest import fellow, kind, make_fellow, outside, relay
from tests.servers.postgres import postgres15, schema
from tests.servers.schemas import migrated_schema

__all__ = ["fellow", "kind", "make_fellow", "outside", "relay"]


@pytest.fixture
def conninfo() -> str:
    """This run's old server, with a schema in it that is migrated and empty, and has the application's own table."""
    server = postgres15()
    migrated_schema(server, schema(), "CREATE TABLE effect (n integer PRIMARY KEY)")
    return server
