"""Keeping handlers alive whose clients have gone: each in a task of its own, unless no server would cancel it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import CodeType
from typing import Any, Final, TypeVar

from semel.errors import InvalidBody
from semel.http.asgi.listener import Listener, tells_of_leaving

T = TypeVar("T")

_UVICORN_CALL: Final = "RequestResponseCycle.run_asgi"


class KeptAlive:
    """The tasks of one application that must come to their end."""

    __slots__ = ("_begun", "_tasks", "uvicorn_code")

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun: set[asyncio.Task[Any]] = set()
        self.uvicorn_code: CodeType | object = object()  # of uvicorn's call, once it was seen

    async def shield(self, work: Coroutine[Any, Any, None], listener: Listener) -> None:
        """Run what must not end with its client, in its own task; the listener learns when the client has left."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            listener.left()
            # The shield would drop what the handler still raises, and no one else would report it.
            task.add_done_callback(_report)
            raise
        finally:
            del task  # it holds what the handler raised, and that holds this frame

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run what can be cut short and gone on with, in a task of its own: the application's end cancels it."""
        task = asyncio.create_task(work)
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        return task

    def leave(self, task: asyncio.Task[Any]) -> None:
        """Report what a task raises that is not awaited any more."""
        task.add_done_callback(_report)

    def is_needless(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether this task is uvicorn's own call of the application, which a disconnect does not cancel."""
        if task is None:
            return False
        code: CodeType | None = getattr(task.get_coro(), "cr_code", None)
        if code is self.uvicorn_code:
            return True
        if code is not None and code.co_qualname == _UVICORN_CALL and "uvicorn" in code.co_filename:
            self.uvicorn_code = code
            return True
        return False

    async def close(self) -> None:
        """Wait for the handlers whose clients have gone; what may be cut short is."""
        for task in self._begun:
            task.cancel()
        while self._begun:
            await asyncio.wait(set(self._begun))
        while self._tasks:
            await asyncio.wait(set(self._tasks))


def _report(task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not tells_of_leaving(error) and not isinstance(error, InvalidBody):  # it left midway
        what = {"message": "a handler failed after its client had disconnected", "exception": error, "task": task}
        task.get_loop().call_exception_handler(what)
