"""The opening of an engine: it checks its store's identity once, at the latest before the first claim.

An engine that refuses its store closes it, since its connections are already open.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from semel.core.flow import Flow, ask
from semel.core.requests import Perform
from semel.engine.requirements import introduce
from semel.engine.state import Core
from semel.stores.backend import Backend
from semel.stores.process import begin_in_children

E = TypeVar("E", bound=Any)


def open_or_close(engine: E) -> E:
    """Open the engine and return it. If opening raises, close it first."""
    try:
        engine.open()
    except BaseException:
        engine.close()
        raise
    return engine


async def open_or_close_async(engine: E) -> E:
    """Open an engine of an event loop and return it. If opening raises, close it first."""
    try:
        await engine.open()
    except BaseException:
        await engine.close()
        raise
    return engine


def introduction(core: Core, backend: Backend) -> Flow[None]:
    """Read the store's identity and refuse one that is not ours; migrate first a store that lives in this process."""
    store = backend.store
    if not store.capabilities.shared_between_processes:
        yield from ask(Perform("migrate", lambda: store.migrate(*core.first_identity())))
    core.check_store((yield from ask(Perform("identity", lambda: introduce(store)))), backend)


class FirstLook:
    """The first check of an engine that was not opened, in ordinary threads: concurrent callers share it.

    The next caller repeats a check that failed.
    """

    def __init__(self, core: Core, check: Callable[[], None]) -> None:
        self._core = core
        self._check = check
        self.begin_process()
        begin_in_children(self)

    def begin_process(self) -> None:
        """Start without a check on its way: at construction, and in a forked child."""
        self._lock = threading.Lock()
        self._look: Future[None] | None = None

    def take(self) -> None:
        """Be checked. Raises as ``open`` of the engine does."""
        mine: Future[None] = Future()
        while not self._core.checked:
            with self._lock:
                look = self._look = self._look or mine
            if look is mine:
                return self._perform(mine)
            with suppress(CancelledError):  # the checking thread was interrupted: another thread checks next
                return look.result()

    def _perform(self, mine: Future[None]) -> None:
        try:
            self._check()
        except Exception as error:
            self._look = None
            mine.set_exception(error)
            raise
        except BaseException:
            self._look = None
            mine.cancel()
            raise
        self._look = None
        mine.set_result(None)


class AsyncFirstLook:
    """The first check on event loops: each loop has its own."""

    def __init__(self, core: Core, check: Callable[[], Awaitable[None]]) -> None:
        self._core = core
        self._check = check
        self.begin_process()
        begin_in_children(self)

    def begin_process(self) -> None:
        """Start without a check on its way: at construction, and in a forked child."""
        self._look: asyncio.Future[None] | None = None

    async def take(self) -> None:
        """Be checked. Raises as ``open`` of the engine does."""
        loop = asyncio.get_running_loop()
        while not self._core.checked:
            look = self._look
            if look is None or look.get_loop() is not loop:
                return await self._perform(loop.create_future())
            await asyncio.wait((look,))
            if not look.cancelled():  # else the checking caller was cancelled: another one checks next
                return look.result()

    async def _perform(self, mine: asyncio.Future[None]) -> None:
        self._look = mine
        try:
            await self._check()
        except Exception as error:
            self._end(mine)
            mine.set_exception(error)
            mine.exception()  # marks the exception as retrieved: there may be no waiter
            raise
        except BaseException:
            self._end(mine)
            with suppress(RuntimeError):  # the loop was closed while this waited
                mine.cancel()
            raise
        self._end(mine)
        mine.set_result(None)

    def _end(self, mine: asyncio.Future[None]) -> None:
        if self._look is mine:
            self._look = None
