"""One deadline for each store call: all its waits together end in time.

A call may wait in the engine's queue, for a connection of the pool, for a new connection, and then for its answer. Each
stage gets the time that the stages before it have left. A statement that is sent gets a little more: otherwise a call
that waited for its turn nearly to the end would send a statement whose answer it cannot await. The extra time also lets
the server's own time-out fire first, which proves that nothing was written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, Final, TypeVar

T = TypeVar("T")

MARGIN_SECONDS_MAX: Final = 1.0
STATEMENTS: Final = 3  # that share a deadline; in a walk of more (a count, a list) each page has its own
_LEAST: Final = 0.001  # client libraries take no time-out of zero


class Deadline:
    """The time by which a store call that begins now must end.

    Parameters: ``seconds`` the store's patience; ``waited`` how many of them the call has waited already.

    >>> call = Deadline(5.0, waited=4.9)
    >>> call.before_sending() <= 0.1, 1.0 < call.for_answer() <= 1.1
    (True, True)
    """

    __slots__ = ("_answers", "_ends", "_seconds")

    def __init__(self, seconds: float, waited: float = 0.0) -> None:
        self._seconds = seconds
        self._ends = time.monotonic() + seconds - waited
        self._answers = 0

    def before_sending(self) -> float:
        """Return the seconds left to get a connection; after them nothing is sent."""
        return max(_LEAST, self._ends - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether the time to send anything is over."""
        return time.monotonic() >= self._ends

    def share(self, ways: int) -> Deadline:
        """Make a deadline for one of several questions, so that an unanswered one leaves time for the others."""
        return self if ways == 1 else Deadline(self.before_sending() / ways)

    def for_answer(self) -> float:
        """Return the remaining seconds for the answer to a request sent now."""
        return max(_LEAST, self._ends + min(MARGIN_SECONDS_MAX, self._seconds / 5) - time.monotonic())

    def note_answer(self) -> None:
        """Note that the store has answered one of the call's statements, so that a walk of many goes on."""
        self._answers += 1
        if self._answers >= STATEMENTS:
            self._ends = time.monotonic() + self._seconds


class Limit:
    """A time limit for a task's call that was begun without one; it ends the call as asyncio.timeout does."""

    __slots__ = ("_before", "_is_over", "_task", "_timer")

    def __init__(self, task: asyncio.Task[Any] | None, seconds: float) -> None:
        assert task is not None  # there is one wherever something is awaited
        self._task: asyncio.Task[Any] | None = task
        self._before = task.cancelling()
        self._is_over = False
        self._timer = task.get_loop().call_later(seconds, self._cut)

    def _cut(self) -> None:
        self._is_over = True
        if self._task is not None:
            self._task.cancel()

    def end(self, error: BaseException | None) -> BaseException | None:
        """End the limit, and return the call's error: TimeoutError if only the timer cancelled it."""
        self._timer.cancel()
        task, self._task = self._task, None  # the task keeps the error, whose frames keep this object
        if not self._is_over or task is None:
            return error
        if task.uncancel() <= self._before and isinstance(error, asyncio.CancelledError):
            late = TimeoutError()
            late.__cause__ = error
            return late
        return error


async def run_within(call: Awaitable[T], seconds: float) -> T:
    """Await a call, and cancel it after so many seconds; as ``asyncio.timeout``, in a third of its steps.

    Raises TimeoutError: this limit alone cancelled the call.
    """
    limit = Limit(asyncio.current_task(), seconds)
    try:
        result = await call
    except BaseException as error:  # noqa: BLE001 - it is raised again, or TimeoutError in its place
        raise limit.end(error) or error  # noqa: B904 - it has its cause
    limit.end(None)
    return result
