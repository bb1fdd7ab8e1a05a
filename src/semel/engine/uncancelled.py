"""Run a coroutine to its end even if its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def whole(work: Coroutine[Any, Any, T]) -> tuple[T, asyncio.CancelledError | None]:
    """Run a coroutine to completion in a separate task, even if the caller is cancelled.

    Returns its result, and the cancellation if there was one: the caller ends what the result has begun, and raises it.
    Raises what the work raised; the cancellation instead, where there was one.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and (task.cancelled() or task.exception() is not None):
        raise cancelled
    return task.result(), cancelled
