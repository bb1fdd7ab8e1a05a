"""One flow on its way through the SQLite driver, and how its caller gets the result."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from semel.core.flow import Ask, Flow, MakeFlow
from semel.errors import StoreUnavailable

T = TypeVar("T")


class FlowJob(Generic[T]):
    """A flow, its position, and its waiter: a thread's event or a loop's future.

    A job that ``lends`` is no flow: it asks for the gate itself (see ``sqlite_unit``).
    """

    __slots__ = (
        "_error",
        "_flow",
        "_make",
        "_needed",
        "_value",
        "deadline",
        "done",
        "event",
        "forsaken",
        "future",
        "lend",
        "loop",
    )

    def __init__(self, make: MakeFlow[T] | None, deadline: float, lend: Callable[[], T] | None = None) -> None:
        self._make = make
        self._flow: Flow[T] | None = None
        self._needed: Ask[Any] | None = None
        self._value: T | None = None
        self._error: BaseException | None = None
        self.deadline = deadline  # monotonic seconds
        self.done = False
        self.event: threading.Event | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.future: asyncio.Future[None] | None = None
        self.forsaken: Callable[[FlowJob[T]], None] | None = None  # what to do with the value if its caller is gone
        self.lend = lend if lend is not None else _nothing_to_lend

    @property
    def lends(self) -> bool:
        return self._make is None

    def begins(self, with_: Callable[[Ask[Any]], bool]) -> bool:
        """Make the flow, and tell whether its first ask is such a one. A flow may end without any."""
        assert self._make is not None
        self._flow = self._make()
        try:
            self._needed = next(self._flow)
        except StopIteration as stop:
            self.finish(stop.value)
            return False
        return with_(self._needed)

    def advance(self, answer: Callable[[Ask[Any]], Any], *, until: Callable[[Ask[Any]], bool] | None = None) -> bool:
        """Perform requests from the flow's position to its end, or to the first one for which ``until`` holds."""
        flow = self._flow
        try:
            if flow is None:
                assert self._make is not None
                flow = self._flow = self._make()
                self._needed = next(flow)
            needed = cast("Ask[Any]", self._needed)
            while until is None or not until(needed):
                needed = self._needed = flow.send(answer(needed))
        except StopIteration as stop:
            self.finish(stop.value)
            return True
        return False

    def restart(self) -> None:
        """Forget a rolled back try: the flow is made anew."""
        self._flow = self._needed = self._value = self._error = None
        self.done = False

    def finish(self, value: T) -> None:
        """It ended well. ``settle_jobs`` wakes the caller after the commit."""
        self._value = value
        self.done = True

    def fail(self, error: BaseException) -> None:
        """It ended badly."""
        self._error = error
        self.done = True

    def result(self) -> T:
        """The flow's result, once; raises its error."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # no cycle between the error and this frame
        value, self._value = self._value, None  # handed over: the thread that served the job must not keep it alive
        return cast(T, value)


def nothing() -> Flow[None]:
    """The flow of a job that only takes its turn."""
    yield from ()


def _nothing_to_lend() -> Any:
    raise AssertionError("only a lending job is asked to lend")


def refuse_overdue(queue: deque[FlowJob[Any]]) -> None:
    """Refuse a flow that waited too long for its turn: it has written nothing."""
    now = time.monotonic()
    overdue = [job for job in list(queue) if job.deadline <= now]
    for job in overdue:
        try:
            queue.remove(job)
        except ValueError:
            continue  # another thread has taken it in the meantime
        job.fail(StoreUnavailable("SQLite: the database was busy for too long; retry with the same key"))
        settle_jobs([job])


def settle_jobs(jobs: list[FlowJob[Any]]) -> None:
    """Tell every caller; the futures of one loop with one wake-up, or at once if this is its own thread."""
    loops: dict[asyncio.AbstractEventLoop, list[FlowJob[Any]]] = {}
    for job in jobs:
        if job.event is not None:
            job.event.set()
        elif job.loop is not None and job.future is not None:
            loops.setdefault(job.loop, []).append(job)
    for loop, told in loops.items():
        futures = [job.future for job in told if job.future is not None]
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            _resolve(futures)
            continue
        try:
            loop.call_soon_threadsafe(_resolve, futures)
        except RuntimeError:  # the loop is closed: no caller is left, the write remains
            for job in told:
                if job.forsaken is not None:
                    job.forsaken(job)


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
