"""Budgets of what a request costs in Python bytecodes: they only go down, whatever the machine is doing."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from bench.bytecodes import DRIVERS, KINDS, SERVER_KINDS, SURFACES, Counted, count
from tests.servers import postgres
from tests.servers.schemas import migrated_schema

# Measured by `python -m bench.bytecodes` on Python 3.11, and a little room. Later versions of Python divide the same
# work into other instructions.
BUDGETS = {
    ("asgi", "fresh"): 3_050,
    ("asgi", "replay"): 1_215,
    ("asgi", "refused"): 3_965,
    ("asgi", "failed"): 2_800,
    ("asgi", "unprotected"): 330,
    ("starlette", "fresh"): 3_660,
    ("starlette", "replay"): 1_890,
    ("starlette", "refused"): 4_645,
    ("starlette", "failed"): 3_550,
    ("starlette", "unprotected"): 290,
    ("fastapi", "fresh"): 4_040,
    ("fastapi", "replay"): 2_265,
    ("fastapi", "refused"): 5_020,
    ("fastapi", "failed"): 3_930,
    ("fastapi", "unprotected"): 660,
}
# What one fresh command and one replay may spend in each room.
ROOMS = {
    "fresh": {"semel.http": 1_348, "semel.engine": 610, "semel.core": 535, "semel.stores": 465, "semel": 62},
    "replay": {"semel.http": 790, "semel.engine": 65, "semel.core": 245, "semel.stores": 40, "semel": 62},
}
SQLITE_REPLAY = 1_400
POSTGRES = {
    ("psycopg", "fresh"): 9_400,
    ("psycopg", "replay"): 5_300,
    ("psycopg", "atomic"): 8_050,
    ("psycopg", "atomic-replay"): 5_800,
    ("asyncpg", "fresh"): 6_700,
    ("asyncpg", "replay"): 3_820,
    ("asyncpg", "atomic"): 6_080,
    ("asyncpg", "atomic-replay"): 3_970,
}
ROOM_OF_LATER_PYTHONS = 1.0 if sys.version_info < (3, 12) else 1.3


def counted(surface: str, url: str, kind: str) -> Counted:
    return asyncio.run(count(surface, url, kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("surface", SURFACES)
def test_a_request_on_the_memory_store_stays_within_its_budget(surface: str, kind: str) -> None:
    found = counted(surface, "memory://?persistence=none", kind)
    assert found.total() <= BUDGETS[surface, kind] * ROOM_OF_LATER_PYTHONS, found


@pytest.mark.parametrize("kind", ROOMS)
def test_every_room_stays_within_its_share(kind: str) -> None:
    found = counted("asgi", "memory://?persistence=none", kind)
    over = {room: found[room] for room, most in ROOMS[kind].items() if found[room] > most * ROOM_OF_LATER_PYTHONS}
    assert not over


def test_a_replay_from_sqlite_stays_within_its_budget(tmp_path: Path) -> None:
    found = counted("asgi", f"sqlite:///{tmp_path / 'semel.db'}", "replay")
    assert found.total() <= SQLITE_REPLAY * ROOM_OF_LATER_PYTHONS, found


@pytest.mark.parametrize("kind", SERVER_KINDS)
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_request_on_postgresql_stays_within_its_budget(driver: str, kind: str) -> None:
    """Alone, so that a batch is of one; what the libraries execute themselves is not counted."""
    schema = postgres.schema()
    migrated_schema(postgres.postgres(), schema)
    place = postgres.postgres().removeprefix("postgresql://")
    found = counted("asgi", f"{DRIVERS[driver]}{place}?schema={schema}&persistence=none", kind)
    assert found.total() <= POSTGRES[driver, kind] * ROOM_OF_LATER_PYTHONS, found


def test_the_counts_are_the_same_each_time() -> None:
    assert counted("asgi", "memory://?persistence=none", "replay") == counted(
        "asgi", "memory://?persistence=none", "replay"
    )
