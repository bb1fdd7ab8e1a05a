"""Wraps `send` and detects client disconnects.

A server tells that a client has gone with an ``OSError``, a framework in words of its own, and a layer that was
cancelled may have closed what it listened on, or never take what it was waiting for. All of it is one error here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

# By name, so that no library is imported to ask: what anyio, trio, Starlette and uvicorn raise.
_DISCONNECTS: Final = frozenset(
    {"BrokenResourceError", "ClosedResourceError", "ClientDisconnect", "ClientDisconnected"}
)


class ListenerGone(ConnectionError):
    """The client has disconnected. Applications see it as the ``OSError`` that ASGI defines."""


class Listener:
    """The send of the layer outside, until that layer has :meth:`left`. Then it raises ListenerGone."""

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
        """The layer outside has ended; what is on its way to it is given up."""
        self._gone = True
        if self._sending is not None:
            self._sending.reschedule(asyncio.get_running_loop().time())


def is_disconnect(error: BaseException) -> bool:
    """Whether an error of sending says that the client has disconnected.

    >>> is_disconnect(BrokenPipeError()), is_disconnect(ValueError())
    (True, False)
    """
    return isinstance(error, OSError) or any(kind.__name__ in _DISCONNECTS for kind in type(error).__mro__)


def tells_of_leaving(error: BaseException) -> bool:
    """Whether a handler ended with ListenerGone, or with what a framework made of it."""
    seen = error
    while is_disconnect(seen):
        if isinstance(seen, ListenerGone):
            return True
        below = seen.__cause__ or seen.__context__
        if below is None:
            break
        seen = below
    return False
