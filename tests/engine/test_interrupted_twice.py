"""A time limit that comes again while its first exception is on its way: at each instruction where one can come."""

from __future__ import annotations

import dis
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from types import FrameType
from typing import Any

import pytest

from semel import Engine
from semel.stores import shield
from semel.stores.shield import Hold, run_shielded, serve_lost
from tests.engine.shells import MADE, command
from tests.servers.redis import eventually

OURS = ("engine/sync_engine.py", "stores/shield.py")
# The interpreter looks for signals and asynchronous exceptions as a function begins, behind a call, and in loops.
BEGINS = frozenset({dis.opmap["RESUME"]})
CALLS = frozenset(code for name, code in dis.opmap.items() if name.startswith(("CALL", "JUMP_BACKWARD")))


class Limit(Exception):
    """A time limit."""


class Strike:
    """Raises :class:`Limit` in this thread at its n-th instruction of Semel's at which one can come."""

    def __init__(self, at: int) -> None:
        self.left = at
        self._before: dict[FrameType, int] = {}

    def trace(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.endswith(OURS):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            code = frame.f_code.co_code[frame.f_lasti]
            before = self._before.get(frame)
            self._before[frame] = code
            if code in BEGINS or before in CALLS:
                self.left -= 1
                if self.left == 0:
                    self._before.clear()
                    sys.settrace(None)
                    raise Limit("the second")
        elif event == "return":
            self._before.pop(frame, None)
        return self.trace

    @contextmanager
    def arm(self) -> Iterator[None]:
        try:
            yield
        finally:
            sys.settrace(None)
            self._before.clear()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is lost is undone at once, not when the collector of cycles happens to come by."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_grant_is_undone_even_if_its_release_is_interrupted(no_collector: None) -> None:
    undone: list[int] = []

    def use(number: int, strike: Strike) -> None:
        hold: Hold[int] = Hold(lambda value, error: undone.append(value))
        try:
            run_shielded(lambda: hold.give(number))
            raise Limit("the first")
        except BaseException as error:
            sys.settrace(strike.trace)
            hold.let_go(error)
            raise

    number, was_reached = 0, True
    while was_reached:
        number += 1
        strike = Strike(number)
        with pytest.raises(Limit), strike.arm():
            use(number, strike)
        was_reached = strike.left == 0
        eventually(lambda number=number: number in undone, 5.0)  # type: ignore[misc]
    assert number > 10  # instructions, not only the first
    assert undone == sorted(set(undone))


def test_a_grant_lost_after_its_call_is_undone_at_the_next_renewal() -> None:
    """By then the thread of the call may have ended: it waits five idle seconds for another."""
    undone = threading.Event()
    hold: Hold[int] = Hold(lambda value, error: undone.set())
    hold.give(1)
    del hold
    serve_lost()
    assert undone.wait(5.0)


def test_a_time_limit_anywhere_in_a_run_leaves_no_permit(no_collector: None) -> None:
    with closing(Engine.connect("memory://")) as engine:
        engine.migrate()
        at, was_reached = 0, True
        while was_reached:
            at += 1
            strike = Strike(at)
            with strike.arm():
                sys.settrace(strike.trace)
                with suppress(Limit):
                    engine.run(command(f"k-{at}"), lambda permit: MADE)
            was_reached = strike.left == 0
            eventually(lambda: not engine.core.live, 5.0)
        assert at > 30


def test_a_store_error_during_the_undo_ends_no_thread_of_semels() -> None:
    undone: list[int] = []

    def fail(value: int, error: BaseException | None) -> None:
        undone.append(value)
        raise OSError("the store is away")

    hold = Hold(fail)
    hold.give(1)
    shield._open[hold._number].perform()  # as a thread of Semel's does once the hold is lost
    assert undone == [1]
