"""A listener for outbox notifications on PostgreSQL, on a connection of its own.

It only shortens waits: without notifications a relay still polls, less often. Behind a pooler in transaction mode no
notification ever arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import psycopg

CHANNEL: Final = "semel_event"
TO_ALL: Final = "all"  # the payload by which a relay calls others to help with more events than it can publish
AGAIN_SECONDS: Final = 5.0


class PostgresListener:
    """Calls ``hear`` whenever a process has committed events.

    Parameters: ``server`` the driver's (``stores/postgres/psycopg/driver.Server``); ``hear`` is called on the loop,
    with whether all relays are needed: for newly committed events one is enough.
    """

    def __init__(self, server: Any, hear: Callable[[bool], object]) -> None:
        self._server = server
        self._hear = hear
        self._task: asyncio.Task[None] | None = None
        self.is_listening = False

    async def open(self) -> None:
        """Begin to listen; if that fails, retry every few seconds."""
        begun = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._listen(begun), name="semel-listen")
        await begun

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    async def _listen(self, begun: asyncio.Future[None]) -> None:
        while True:
            with suppress(psycopg.Error, OSError):
                options = {**self._server.options(), "autocommit": True, "application_name": "semel-listen"}
                async with await psycopg.AsyncConnection.connect(self._server.conninfo, **options) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self.is_listening = True
                    if not begun.done():
                        begun.set_result(None)
                    self._hear(True)  # earlier commits send no notification
                    async for heard in connection.notifies():
                        self._hear(heard.payload == TO_ALL)
            self.is_listening = False
            if not begun.done():
                begun.set_result(None)
            await asyncio.sleep(AGAIN_SECONDS)
