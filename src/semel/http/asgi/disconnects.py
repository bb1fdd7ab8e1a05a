"""Detection of clients that disconnect, and the tasks that keep their handlers alive.

A server reports a disconnect with an ``OSError``, a framework with an exception of its own; a cancelled layer may
have closed its stream, or may never read what it was waiting for. All of these become one error here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from types import CodeType
from typing import Any, Final, TypeVar

from semel.errors import InvalidBody

T = TypeVar("T")
_UVICORN_CALL: Final = "RequestResponseCycle.run_asgi"

# By name, so that no library is imported for the check: what anyio, trio, Starlette and uvicorn raise.
_DISCONNECTS: Final = frozenset(
    {"BrokenResourceError", "ClosedResourceError", "ClientDisconnect", "ClientDisconnected"}
)


class ListenerGone(ConnectionError):
    """The client has disconnected. Applications see it as the ``OSError`` that ASGI defines."""


class Listener:
    """The outer layer's ``send``, until that layer has :meth:`left`. From then on it raises ListenerGone."""

    __slots__ = ("_gone", "_send", "_sending")

    def __init__(self, send: Callable[[MutableMapping[str, Any]], Awaitable[None]]) -> None:
        self._send = send
        self._gone = False
        self._sending: asyncio.Timeout | None = None

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send a message, without waiting for a client that has disconnected."""
        if self._gone:
            raise ListenerGone("the client has disconnected")
        try:
            async with asyncio.timeout(None) as self._sending:
                await self._send(message)
        except Exception as error:
            if self._gone or is_disconnect(error):
                raise ListenerGone("the client has disconnected") from error
            raise
        finally:
            self._sending = None

    def left(self) -> None:
        """Note that the outer layer has ended, and give up messages on their way to it."""
        self._gone = True
        if self._sending is not None:
            self._sending.reschedule(asyncio.get_running_loop().time())


def is_disconnect(error: BaseException) -> bool:
    """Return whether an error from sending means that the client has disconnected.

    >>> is_disconnect(BrokenPipeError()), is_disconnect(ValueError())
    (True, False)
    """
    return isinstance(error, OSError) or any(kind.__name__ in _DISCONNECTS for kind in type(error).__mro__)


def tells_of_leaving(error: BaseException) -> bool:
    """Return whether a handler ended with ListenerGone, or with what a framework made of it."""
    seen = error
    while is_disconnect(seen):
        if isinstance(seen, ListenerGone):
            return True
        below = seen.__cause__ or seen.__context__
        if below is None:
            break
        seen = below
    return False


class KeptAlive:
    """The tasks of one application that must run to their end: one for each handler whose client may disconnect."""

    __slots__ = ("_begun", "_tasks", "uvicorn_code")

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun: set[asyncio.Task[Any]] = set()
        self.uvicorn_code: CodeType | object = object()  # the code of uvicorn's call, once seen

    async def shield(self, work: Coroutine[Any, Any, None], listener: Listener) -> None:
        """Run in its own task what must not end with its client; the listener learns when the client has left."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            listener.left()
            # The shield would drop what the handler still raises, so report it here.
            task.add_done_callback(_report)
            raise
        finally:
            del task  # break a cycle: the task holds the handler's exception, which holds this frame

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run in its own task what can be interrupted and resumed: the application's shutdown cancels it."""
        task = asyncio.create_task(work)
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        return task

    def leave(self, task: asyncio.Task[Any]) -> None:
        """Report what a task raises that is no longer awaited."""
        task.add_done_callback(_report)

    def is_needless(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether this task is uvicorn's own call of the application, which a disconnect does not cancel."""
        code: CodeType | None = None if task is None else getattr(task.get_coro(), "cr_code", None)
        if code is self.uvicorn_code:
            return True
        if code is not None and code.co_qualname == _UVICORN_CALL and "uvicorn" in code.co_filename:
            self.uvicorn_code = code
            return True
        return False

    async def close(self) -> None:
        """Wait for the handlers whose clients have disconnected; cancel the tasks that may be interrupted."""
        for task in self._begun:
            task.cancel()
        while self._begun:
            await asyncio.wait(set(self._begun))
        while self._tasks:
            await asyncio.wait(set(self._tasks))


def _report(task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not tells_of_leaving(error) and not isinstance(error, InvalidBody):  # left midway
        what = {"message": "a handler failed after its client had disconnected", "exception": error, "task": task}
        task.get_loop().call_exception_handler(what)
