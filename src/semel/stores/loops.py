"""One value for each event loop in use: a connection belongs to the loop that opened it, and ends with it.

A program that calls ``asyncio.run`` for each task uses one loop after the other. Their idle connections would stay open
on the server as long as this process lives: a connection refers to its loop, so neither is ever freed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class Loops(Generic[V]):
    """Values by event loop. ``make`` makes a loop's value; ``drop`` ends a closed loop's without awaiting."""

    def __init__(self, make: Callable[[], V], drop: Callable[[V], None]) -> None:
        self._make = make
        self._drop = drop
        self._values: dict[asyncio.AbstractEventLoop, V] = {}  # strong, so that each value is dropped

    def here(self) -> V:
        """Return the value of the running loop."""
        running = asyncio.get_running_loop()
        value = self._values.get(running)
        if value is None:
            for over in [loop for loop in list(self._values) if loop.is_closed()]:
                dropped = self._values.pop(over, None)
                if dropped is not None:  # else another thread was first
                    self._drop(dropped)
            value = self._values[running] = self._make()
        return value


def socket_number(transport: Any) -> int:
    """Return the number of a transport's socket; -1 if it is closed."""
    number: int = transport.get_extra_info("socket").fileno()
    return number


def cut(transport: Any) -> None:
    """Close the socket of a transport whose loop is closed: none of its callbacks will ever run."""
    under = getattr(getattr(transport, "_ssl_protocol", None), "_transport", transport)
    with suppress(RuntimeError):  # it calls its loop, which is closed
        transport.abort()
    sock = getattr(under, "_sock", None)  # asyncio's transports have it; uvloop closed its sockets with the loop
    if sock is not None:
        under._sock = None
        sock.close()
