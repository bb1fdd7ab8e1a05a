"""The file beside a SQLite database in which workers take turns: despite any damage, a worker checks the store."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

import pytest

from semel import AsyncEngine
from semel.stores.sql.statements import TakeTurn
from semel.stores.sqlite.turns import KINDS_MOST, SUFFIX, take_turn
from semel.testing.clock import SettableClock
from semel.workers.rules import Turn
from semel.workers.turns import Turns
from tests.engine.drivers import sqlite

SECOND_US = 1_000_000
NOW = 1_800_000_000 * SECOND_US


def take(path: Path, kind: str = "reaper", mine: int | None = None, now: int = NOW) -> int | None:
    return take_turn(str(path), TakeTurn(kind, mine, SECOND_US), now)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "semel.db"
    path.touch(0o640)
    return path


def test_each_worker_takes_the_turn_after_the_last_of_its_kind(database: Path) -> None:
    assert take(database) == NOW + SECOND_US
    assert take(database) == NOW + 2 * SECOND_US
    assert take(database, "completer") == NOW + SECOND_US
    assert take(database, mine=NOW + 2 * SECOND_US) == NOW + 2 * SECOND_US  # it looked out of turn
    assert take(database, now=NOW + 10 * SECOND_US) == NOW + 11 * SECOND_US  # the others are gone
    assert Path(f"{database}{SUFFIX}").stat().st_mode & 0o777 == 0o640  # as the database


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"reaper": 1}', b'{"reaper": ["a", null]}', b"\xff" * 99])
def test_a_damaged_file_resets_the_turns(content: bytes, database: Path) -> None:
    Path(f"{database}{SUFFIX}").write_bytes(content)
    assert take(database) == NOW + SECOND_US
    assert take(database) == NOW + 2 * SECOND_US


def test_no_worker_waits_for_a_process_stopped_in_its_turn(database: Path) -> None:
    assert take(database) is not None
    stopped = os.open(f"{database}{SUFFIX}", os.O_RDWR)
    fcntl.flock(stopped, fcntl.LOCK_EX)
    assert take(database) is None
    os.close(stopped)
    assert take(database) == NOW + 2 * SECOND_US


def test_a_link_is_not_followed(database: Path, tmp_path: Path) -> None:
    target = tmp_path / "other"
    target.write_bytes(b"precious")
    Path(f"{database}{SUFFIX}").symlink_to(target)
    assert take(database) is None
    assert target.read_bytes() == b"precious"


def test_unused_kinds_are_forgotten(database: Path) -> None:
    for number in range(KINDS_MOST + 10):
        _ = take(database, f"completer:{number}", now=NOW + number)
    assert Path(f"{database}{SUFFIX}").stat().st_size < 10_000
    assert take(database, f"completer:{KINDS_MOST}", now=NOW + 2 * KINDS_MOST) is not None


def test_without_turns_each_process_checks_twice_a_second(tmp_path: Path) -> None:
    async def scenario() -> Turn | None:
        clock = SettableClock()
        engine = AsyncEngine(sqlite(tmp_path / "semel.db", clock))
        await engine.migrate()
        (tmp_path / f"semel.db{SUFFIX}").mkdir()
        turn = await Turns(engine.store, "reaper", 1.0, engine.perform).take()
        await engine.close()
        return turn

    turn = asyncio.run(scenario())
    assert turn is not None
    assert turn.next - turn.now == SECOND_US // 2
    assert turn.earliest is None
