"""In which order a run begins its tests, and how many busy ones run at a time."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.ordering import BUSY as SEATED
from tests.ordering import WAITING, begin_first, seat_of
from tests.servers.running import one_of

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Item:
    nodeid: str


CALM = [Item(f"tests/rules/test_{module}.py::test_{number}") for module in "abcdefgh" for number in range(10)]
BUSY = [Item(f"tests/crash/test_{module}.py::test_{number}") for module in "ab" for number in range(4)]
WAITS = [Item(f"tests/worker/test_idle_load.py::test_{number}") for number in range(4)]
LONG = [Item(f"tests/nemeses/test_kills.py::test_{number}") for number in range(2)]


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8, 16])
def test_every_test_starts_once_and_modules_stay_together(workers: int) -> None:
    items = [*CALM, *WAITS, *BUSY, *LONG]
    ordered = begin_first(items, workers)
    assert sorted(item.nodeid for item in ordered) == sorted(item.nodeid for item in items)
    crash = [item.nodeid for item in ordered if "crash/test_a" in item.nodeid]
    at = ordered.index(Item(crash[0]))
    assert [item.nodeid for item in ordered[at : at + 4]] == crash == [item.nodeid for item in BUSY[:4]]
    assert ordered[:2] == LONG


def test_busy_tests_begin_every_other_workers_part() -> None:
    items = [*CALM, *BUSY, *LONG]
    ordered, size = begin_first(items, 4), len(items) // 4
    firsts = [seat_of(ordered[part * size].nodeid) for part in range(4)]
    assert firsts == ["busy", None, "busy", None]


def test_where_there_are_enough_workers_those_that_wait_begin_a_part_of_their_own() -> None:
    items = [*CALM, *WAITS, *BUSY, *LONG]
    ordered, size = begin_first(items, 6), len(items) // 6
    firsts = [seat_of(ordered[part * size].nodeid) for part in range(6)]
    assert firsts == ["busy", None, "busy", None, "waiting", None]


def test_every_pattern_names_a_test_and_one_that_waits_takes_a_seat() -> None:
    modules = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    assert [pattern for pattern in (*SEATED, *WAITING) if not any(fnmatch(name, pattern) for name in modules)] == []
    for pattern in WAITING:
        assert any(fnmatch(name, pattern) and seat_of(name) == "waiting" for name in modules), pattern


def test_the_number_of_running_seats_is_bounded() -> None:
    inside, most, entered = 0, 0, threading.Barrier(2)
    changing = threading.Lock()

    def enter() -> None:
        nonlocal inside, most
        with one_of("test-seat", 2):
            with changing:
                inside += 1
                most = max(most, inside)
            entered.wait(20)  # two at a time: with one seat the second would never come
            with changing:
                inside -= 1

    crowd = [threading.Thread(target=enter) for _ in range(6)]
    for each in crowd:
        each.start()
    for each in crowd:
        each.join(30)
    assert (inside, most) == (0, 2)
