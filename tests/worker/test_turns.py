"""The turns of one worker, with any jump of the store's clock."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from semel.core.flow import Flow
from semel.errors import SchemaError, StoreUnavailable
from semel.workers.rules import Turn, next_turn
from semel.workers.turns import Turns, look_together

SECOND = 1_000_000


class Board:
    """A store of turns alone, with a clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000 * SECOND
        self.taken: dict[str, tuple[int, int]] = {}
        self.asked = 0
        self.kinds: list[str] = []
        self.earliest: int | None = None
        self.refuses = False

    def turn(self, kind: str, mine: int | None, every_us: int, reaps: bool) -> Flow[Turn]:
        self.asked += 1
        self.kinds.append(kind)
        if self.refuses:
            raise SchemaError("there is no table of turns")
        taken = next_turn(self.now, mine, every_us, *self.taken.get(kind, (None, None)))
        if taken is not None:
            self.taken[kind] = taken, self.now
        yield from ()
        return Turn(self.now, mine if taken is None and mine is not None else taken or 0, self.earliest)


async def perform(verb: str, make: Any) -> Any:
    try:
        next(make())
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it asks nothing")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [50.0]
    monkeypatch.setattr("semel.workers.turns.monotonic", lambda: seconds[0])
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


def test_the_workers_of_one_process_look_together(clock: list[float]) -> None:
    async def scenario() -> None:
        board = Board()
        workers = [Turns(board, kind, every, perform) for kind, every in (("a", 1.0), ("b", 5.0), ("b", 1.0))]
        for worker in workers:
            await worker.take()
        for _ in range(5):
            clock[0] += 1.0
            board.now += SECOND
            asked = board.asked
            turns = [await worker.take() for worker in workers]
            assert len({turn.next for turn in turns if turn is not None}) == 1
            assert board.asked == asked + 1
        assert len(set(board.kinds[-5:])) == 1
        workers[0].leave()
        clock[0] += 1.0
        board.now += SECOND
        await workers[1].take()
        await workers[2].take()
        assert board.kinds[-1] == "b"

    asyncio.run(scenario())


def test_workers_on_two_engines_of_one_database_look_together(clock: list[float]) -> None:
    async def scenario() -> None:
        board, other = Board(), Board()
        look_together(board, other)
        one, two = Turns(board, "a", 1.0, perform), Turns(other, "b", 1.0, perform)
        await one.take()
        await two.take()
        clock[0] += 1.0
        board.now += SECOND
        other.now += SECOND
        asked = board.asked + other.asked
        await one.take()
        await two.take()
        assert board.asked + other.asked == asked + 1

    asyncio.run(scenario())


def test_a_worker_that_wakes_for_the_end_of_a_lease_asks_anew_and_the_others_need_not(clock: list[float]) -> None:
    async def scenario() -> None:
        board = Board()
        workers = [
            Turns(board, "a", 1.0, perform),
            Turns(board, "b", 1.0, perform, earliest_of=lambda _: None),
        ]
        for worker in workers:
            await worker.take()
        board.earliest = board.now + SECOND + SECOND // 2
        clock[0] += 1.0
        board.now += SECOND
        for worker in workers:
            await worker.take()
        clock[0] += 0.5
        board.now += SECOND // 2
        asked = board.asked
        turn = await workers[0].take()
        assert turn is not None
        assert turn.earliest == turn.now
        assert board.asked == asked + 1
        clock[0] += 0.5
        board.now += SECOND // 2
        await workers[1].take()  # its turn has come, and no look since
        assert board.asked == asked + 2

    asyncio.run(scenario())


def test_a_worker_that_wants_fewer_turns_uses_its_first_one(clock: list[float]) -> None:
    """Otherwise a process that is restarted more often than that might never use one."""

    async def scenario() -> None:
        board = Board()
        board.now += SECOND // 2
        often, seldom = Turns(board, "a", 0.25, perform), Turns(board, "b", 1.0, perform)
        used = []
        for _ in range(8):
            await often.take()
            turn = await seldom.take()
            assert turn is not None
            used.append(seldom.is_first_in_interval(turn))
            clock[0] += 0.25
            board.now += SECOND // 4
        assert used == [True, False, True, False, False, False, True, False]

    asyncio.run(scenario())


@pytest.mark.parametrize("late", [0.01, 0.15, 0.5, 0.9, 3.0])
@pytest.mark.parametrize("processes", [1, 3])
def test_a_worker_that_wants_fewer_turns_misses_no_interval_by_being_late(
    processes: int, late: float, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look comes ``late`` after its turn."""

    async def scenario() -> None:
        board = Board()
        workers = [(Turns(board, "a", 1.1, perform), Turns(board, "b", 5.0, perform)) for _ in range(processes)]
        known = [WeakKeyDictionary[Any, Any]() for _ in workers]  # by each process: its own workers
        due, used = [0] * processes, set()
        while board.now < 1500 * SECOND:
            which = due.index(min(due))
            step = max(0, due[which] - board.now)
            board.now += step
            clock[0] += step / SECOND
            monkeypatch.setattr("semel.workers.turns._LOOKOUTS", {asyncio.get_running_loop(): known[which]})
            often, seldom = workers[which]
            first, turn = await often.take(), await seldom.take()
            assert first is not None
            assert turn is not None
            if seldom.is_first_in_interval(turn):
                used.add(turn.now // (5 * SECOND))
            due[which] = first.next + int(late * SECOND)
        assert used == set(range(200, max(used) + 1))

    asyncio.run(scenario())


def test_an_answer_that_is_found_late_says_what_is_left_of_the_pause(clock: list[float]) -> None:
    async def scenario() -> None:
        board = Board()
        workers = [Turns(board, kind, 1.0, perform) for kind in "ab"]
        for worker in workers:
            await worker.take()
        clock[0] += 1.0
        board.now += SECOND
        first = await workers[0].take()
        clock[0] += 0.25
        late = await workers[1].take()
        assert first is not None
        assert late is not None
        assert (late.next - late.now) == (first.next - first.now) - SECOND // 4

    asyncio.run(scenario())


def test_where_the_store_refuses_turns_each_worker_looks_for_itself_and_asks_again_a_minute_later(
    clock: list[float],
) -> None:
    async def scenario() -> None:
        board = Board()
        board.refuses = True
        workers = [Turns(board, kind, 1.0, perform) for kind in "ab"]
        assert [await worker.take() for worker in workers] == [None, None]
        assert board.asked == 1
        board.refuses = False
        clock[0] += 60.0
        board.now += 60 * SECOND
        assert None not in [await worker.take() for worker in workers]

    asyncio.run(scenario())


def test_a_look_that_is_cut_off_leaves_the_others_theirs(clock: list[float]) -> None:
    async def scenario() -> None:
        board = Board()
        hangs = asyncio.Event()

        async def hang(verb: str, make: Any) -> Any:
            await hangs.wait()

        ending, other = Turns(board, "a", 1.0, hang), Turns(board, "b", 1.0, perform)
        asking = asyncio.create_task(ending.take())
        await asyncio.sleep(0)
        waiting = asyncio.create_task(other.take())
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        ending.leave()
        assert await waiting is not None

    asyncio.run(scenario())


@pytest.mark.parametrize("trouble", ["slow", "refused", "unavailable", "damaged"])
def test_an_outbox_in_trouble_keeps_no_reaper_from_looking(trouble: str, clock: list[float]) -> None:
    """The relay looks by itself for a minute, and then they look together again."""
    troubles = {"refused": SchemaError("no"), "unavailable": StoreUnavailable("away"), "damaged": ValueError("no JSON")}

    async def scenario() -> None:
        board = Board()
        is_well = True

        def take(kind: str, mine: int | None, every_us: int, records: Any) -> Flow[Turn]:
            if not is_well and trouble in troubles:
                raise troubles[trouble]
            if not is_well:
                clock[0] += 1.5
            return board.turn(kind, mine, every_us, True)

        reaper = Turns(board, "reaper", 1.0, perform)
        relay = Turns(board, "relay", 1.0, perform, with_events=take)
        assert None not in [await reaper.take(), await relay.take(), await reaper.take()]
        together = board.kinds[-1]
        is_well = False
        for _ in range(3):
            clock[0] += 1.0
            board.now += SECOND
            assert await reaper.take() is not None
        assert board.kinds[-1] == "reaper"
        if trouble != "slow":
            with pytest.raises(type(troubles[trouble])) if trouble != "refused" else nullcontext():
                assert await relay.take() is None
        clock[0] += 1.0
        board.now += SECOND
        assert await reaper.take() is not None
        assert board.kinds[-1] == "reaper"
        is_well = True
        clock[0] += 60.0
        board.now += 60 * SECOND
        assert None not in [await reaper.take(), await relay.take()]
        assert board.kinds[-1] == together

    asyncio.run(scenario())


def test_an_outbox_that_stays_slow_delays_a_reaper_once(clock: list[float]) -> None:
    """While its own looks are slow, the relay does not look with the others again."""

    async def scenario() -> None:
        board = Board()
        seconds = 0.0

        def take(kind: str, mine: int | None, every_us: int, records: Any) -> Flow[Turn]:
            clock[0] += seconds
            return board.turn(kind, mine, every_us, True)

        reaper = Turns(board, "reaper", 1.0, perform)
        relay = Turns(board, "relay", 1.0, perform, with_events=take)

        async def look_for(turns: int) -> int:
            """The number of looks that both waited for."""
            before = len(board.kinds)
            for _ in range(turns):
                clock[0] += 1.0
                board.now += SECOND
                assert None not in [await reaper.take(), await relay.take()]
            return sum(kind not in ("reaper", "relay") for kind in board.kinds[before:])

        assert await look_for(10) > 8
        seconds = 1.5
        assert await look_for(300) == 1
        seconds = 0.0
        assert await look_for(100) > 30

    asyncio.run(scenario())
