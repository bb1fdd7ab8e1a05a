"""An asyncio event loop of one simulated process: no clock, no thread and no socket of its own.

The world says whose turn it is and what time it is. A process that dies leaves its loop behind with every
task in it: ``bury`` ends them, and nothing they do on their way out reaches anybody. Futures, tasks, time-outs
and shields are asyncio's own.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from math import ceil
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from contextvars import Context

    from verification.simulate.world import World

_NOTHING: Final[tuple[Any, ...]] = ()


def _nothing() -> None:
    return None


class Turn:
    """A callback that is due, as asyncio's handles are: it may be cancelled. ``at`` is the loop's time in seconds."""

    __slots__ = ("act", "at", "context", "given")

    def __init__(
        self, act: Callable[..., object], given: tuple[Any, ...], context: Context | None, at: float = 0.0
    ) -> None:
        self.act = act
        self.given = given
        self.context = context
        self.at = at

    def cancel(self) -> None:
        """Cancel it: it never runs."""
        self.act, self.given, self.context = _nothing, _NOTHING, None

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.act is _nothing

    def when(self) -> float:
        """When a timer is due, in the loop's seconds."""
        return self.at


_Loop: Any = asyncio.AbstractEventLoop  # untyped: of its fifty methods the engine needs a dozen


class WorkerLoop(_Loop):  # type: ignore[misc]
    """The loop of one process. ``offset_us`` is what its monotonic clock shows more than the world's."""

    def __init__(self, world: World, offset_us: int = 0) -> None:
        self._world = world
        self._offset_us = offset_us
        self._tasks: list[asyncio.Task[Any]] = []
        self.ready: deque[Turn] = deque()
        self.paused = False
        self.alive = True

    def step(self) -> None:
        """One callback. Asyncio promises their order; where the world shuffles, one is let in before its turn."""
        ready = self.ready
        if len(ready) > 1 and self._world.shuffles:
            ready.rotate(-int(self._world.draw() * len(ready)))
        turn = ready.popleft()
        events._set_running_loop(cast("Any", self))
        if turn.context is None:
            turn.act(*turn.given)
        else:
            turn.context.run(turn.act, *turn.given)

    def bury(self) -> None:
        """The process is gone: no task of it moves again, and none of its ``finally`` blocks is heard."""
        self.alive = False
        self.ready.clear()
        events._set_running_loop(cast("Any", self))
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # it must not be reported
                coroutine = task.get_coro()
                assert coroutine is not None
                coroutine.close()
        events._set_running_loop(None)
        self._tasks.clear()
        self.ready.clear()

    # --- what asyncio asks of a loop ----------------------------------------------------------

    def time(self) -> float:
        return (self._world.now + self._offset_us) / 1_000_000

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.alive

    def is_closed(self) -> bool:
        return not self.alive

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        turn = Turn(callback, args, context)
        if self.alive:
            self.ready.append(turn)
        return turn

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        turn = Turn(callback, args, context, when)
        world = self._world
        # Rounded to the microsecond, never before its time: a float second is exact to a tenth of one.
        world.after(max(0, ceil(when * 1_000_000 - 0.1) - self._offset_us - world.now), self._due, turn)
        return turn

    def _due(self, turn: Turn) -> None:
        if self.alive and turn.act is not _nothing:
            self.ready.append(turn)

    def create_future(self) -> asyncio.Future[Any]:
        if not self.alive:
            raise GeneratorExit  # a process that is gone waits for nothing on its way out
        return asyncio.Future(loop=cast("Any", self))

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        if not self.alive:
            coro.close()
            raise GeneratorExit  # a process that is gone begins nothing on its way out
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=cast("Any", self), name=options.get("name", "task"))
        self._tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Unretrieved exceptions are not reported, because their time would depend on the garbage collector."""
