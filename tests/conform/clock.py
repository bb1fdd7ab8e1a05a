"""An event loop whose clock moves only while nothing happens, and then at once to the next timer.

What is tested here waits most of its time, for leases, slow requests and pauses. On this loop a wait costs nothing, and
a busy machine cannot make one too short: work takes no time at all. Server and client must be on the same loop, so that
traffic between them is detected before the clock moves.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Mapping
from typing import Any, Final

GRACE_SECONDS: Final = 0.001  # real time, for the kernel to hand over what was sent


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits for longer than a moment: it reports how long it would have waited instead."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or timeout is None or timeout <= 0:
            return found if found or timeout is not None else super().select(None)
        found = super().select(min(GRACE_SECONDS, timeout))
        if not found:
            self.skipped += timeout
        return found

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return super().get_map()


class JumpingLoop(asyncio.SelectorEventLoop):
    """The loop. Names are looked up at once and not in a thread, whose end the clock would not wait for.

    A connection to a server of this loop is a pair of sockets: that costs half of one through the network's layers.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        self._served: dict[Any, tuple[asyncio.Server, Any]] = {}
        super().__init__(self._jumping)

    async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:
        """As the loop's own."""
        server = await super().create_server(*arguments, **options)
        for each in server.sockets:
            self._served[each.getsockname()[1]] = (server, arguments[0])
        return server

    async def create_connection(self, *arguments: Any, **options: Any) -> Any:
        """As the loop's own."""
        server, accept = self._served.get(arguments[2] if len(arguments) > 2 else None, (None, None))
        if server is None or accept is None or not server.is_serving():
            return await super().create_connection(*arguments, **options)
        near, far = socket.socketpair()
        await self.connect_accepted_socket(accept, far)
        return await super().create_connection(arguments[0], sock=near)

    def time(self) -> float:
        """Seconds that were waited for."""
        return self._jumping.skipped

    async def getaddrinfo(self, *arguments: Any, **options: Any) -> list[Any]:
        """As socket.getaddrinfo."""
        return socket.getaddrinfo(*arguments, **options)
