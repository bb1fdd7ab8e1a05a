"""The turns of one worker, with any jump of the store's clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from semel.core.flow import Flow
from semel.workers.rules import Turn, next_turn
from semel.workers.turns import Turns

SECOND = 1_000_000


class Board:
    """A store of turns alone, with a clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000 * SECOND
        self.last: int | None = None
        self.looked: int | None = None
        self.asked = 0

    def turn(self, kind: str, mine: int | None, every_us: int) -> Flow[Turn]:
        self.asked += 1
        taken = next_turn(self.now, mine, every_us, self.last, self.looked)
        if taken is not None:
            self.last, self.looked = taken, self.now
        yield from ()
        return Turn(self.now, mine if taken is None and mine is not None else taken or 0, None)


async def perform(verb: str, make: Any) -> Any:
    try:
        next(make())
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it asks nothing")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [50.0]
    monkeypatch.setattr("semel.workers.turns.time.monotonic", lambda: seconds[0])
    return seconds


@pytest.mark.parametrize("back", [2, 90, 200])
def test_a_clock_that_is_set_back_stops_no_worker_from_looking(clock: list[float], back: int) -> None:
    async def scenario() -> None:
        board = Board()
        worker = Turns(board, "reaper", 1.0, perform)
        first = await worker.take()
        assert first is not None
        clock[0] += 1.0
        board.now += SECOND - back * SECOND
        turn = await worker.take()
        assert turn is not None
        assert turn.next - turn.now <= SECOND

    asyncio.run(scenario())


def test_a_worker_that_wakes_before_its_turn_keeps_it(clock: list[float]) -> None:
    async def scenario() -> None:
        board = Board()
        await Turns(board, "reaper", 1.0, perform).take()
        worker = Turns(board, "reaper", 1.0, perform)  # its turn is behind the other one's
        first = await worker.take()
        assert first is not None
        clock[0] += 0.5
        board.now += SECOND // 2
        asked = board.asked
        again = await worker.take()
        assert again is not None
        assert (again.next, board.asked) == (first.next, asked + 1)

    asyncio.run(scenario())
