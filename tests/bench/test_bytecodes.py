"""Budgets of what a request costs in Python bytecodes: they only go down, whatever the machine is doing."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from bench.bytecodes import KINDS, SURFACES, Counted, count

# Measured by `python -m bench.bytecodes` on Python 3.11, and a little room. Later versions of Python divide the same
# work into other instructions.
BUDGETS = {
    ("asgi", "fresh"): 2_220,
    ("asgi", "replay"): 1_070,
    ("asgi", "refused"): 3_745,
    ("asgi", "failed"): 2_110,
    ("asgi", "unprotected"): 320,
    ("starlette", "fresh"): 2_650,
    ("starlette", "replay"): 1_585,
    ("starlette", "refused"): 4_265,
    ("starlette", "failed"): 2_680,
    ("starlette", "unprotected"): 265,
    ("fastapi", "fresh"): 3_025,
    ("fastapi", "replay"): 1_960,
    ("fastapi", "refused"): 4_640,
    ("fastapi", "failed"): 3_060,
    ("fastapi", "unprotected"): 640,
}
# What one fresh command and one replay may spend in each room.
ROOMS = {
    "fresh": {"semel.http": 1_215, "semel.engine": 360, "semel.core": 415, "semel.stores": 240, "semel": 5},
    "replay": {"semel.http": 755, "semel.engine": 55, "semel.core": 210, "semel.stores": 40, "semel": 5},
}
SQLITE_REPLAY = 1_260
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


def test_the_counts_are_the_same_each_time() -> None:
    assert counted("asgi", "memory://?persistence=none", "replay") == counted(
        "asgi", "memory://?persistence=none", "replay"
    )
