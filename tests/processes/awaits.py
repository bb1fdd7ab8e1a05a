"""A coroutine whose task is cancelled at its k-th wait of any kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar, overload

T = TypeVar("T")


class CancelledAt(Coroutine[Any, Any, T]):
    """Performs ``inner``; when it waits for the ``at``-th time, its task is cancelled.

    Parameters: ``late`` cancels only when what it waits for is done and before it has learned of that, which is how
    a reply gets lost; otherwise at once.
    """

    def __init__(self, inner: Coroutine[Any, Any, T], at: int, *, late: bool) -> None:
        self._inner = inner
        self._at = at
        self._late = late
        self.waits = 0
        self.cancelled = False

    def send(self, value: Any) -> Any:
        return self._waiting(self._inner.send(value))

    @overload
    def throw(
        self, kind: type[BaseException], value: BaseException | object = ..., trace: TracebackType | None = ...
    ) -> Any: ...

    @overload
    def throw(self, kind: BaseException, value: None = ..., trace: TracebackType | None = ...) -> Any: ...

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None) -> Any:
        return self._waiting(self._inner.throw(kind if isinstance(kind, BaseException) else kind(value)))

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise AssertionError("this is for a task")

    def _waiting(self, awaited: Any) -> Any:
        self.waits += 1
        if self.waits == self._at:
            task = asyncio.current_task()
            assert task is not None
            self.cancelled = True
            if self._late and asyncio.isfuture(awaited):
                awaited.add_done_callback(lambda _: task.cancel())  # before the task's own callback: it came first
            else:
                asyncio.get_running_loop().call_soon(task.cancel)
        return awaited


async def cancelled_at(make: Callable[[], Coroutine[Any, Any, T]], at: int, *, late: bool) -> bool:
    """Perform in its own task, cancelled at that wait; False where it was over before it waited so often."""
    performed = CancelledAt(make(), at, late=late)
    task = asyncio.get_running_loop().create_task(performed)
    await asyncio.wait({task})
    if task.cancelled():
        assert performed.cancelled
    else:
        await task  # its result, or its error
    return performed.cancelled
