"""A subject under test: its server, which can be killed and started again on the same store, and its effects."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench.correctness.client import Call, Reply, send
from bench.correctness.handlers import Book
from bench.processes import Child, Server, start
from bench.setup import Setup

EVENT_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 0.005


class CaseError(Exception):
    """What a case waits for did not happen: the case proves nothing about its subject."""


class Target:
    """A running subject. ``lease_seconds`` is how long its claims count as alive; None if it has no lease."""

    def __init__(self, setup: Setup, python: str, log: Path, lease_seconds: float | None) -> None:
        self.lease_seconds = lease_seconds
        self._setup = setup
        self._python = python
        self._log = log
        self._child: Child | None = None
        self._server: Server | None = None
        assert setup.book is not None
        self.book = Book(Path(setup.book))
        self._numbers = itertools.count(1)
        self._run = uuid.uuid4().hex[:12]  # a server's store may remember former runs

    def call(self, case: str, key: bytes | None = None) -> Call:
        """A call of a case that has not been sent yet, under a key that has not been used yet."""
        mark = f"{case}-{self._run}-{next(self._numbers)}"
        return Call(mark=mark, keys=(mark.encode() if key is None else key,))

    async def start(self) -> None:
        """Start the server, or start it again. Raises BenchError where it does not."""
        self._child, self._server = await asyncio.to_thread(start, self._setup, python=self._python, log=self._log)

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self._child is not None
        await asyncio.to_thread(self._child.kill)

    async def send(self, call: Call) -> Reply:
        """Send one call."""
        assert self._server is not None
        return await send(self._server.port, call)

    @asynccontextmanager
    async def sending(self, call: Call) -> AsyncIterator[asyncio.Task[Reply]]:
        """Send a call and enter when its handler waits at its gate, before or after the effect."""
        reached = self.book.runs if call.gate == "before" else self.book.count
        task = asyncio.create_task(self.send(call))
        try:
            await self.until(lambda: reached(call.mark) > 0 or task.done())
            yield task
        finally:
            self.book.open_gate(call.mark)
            await asyncio.wait([task])

    async def until(self, seen: Callable[[], bool], seconds: float = EVENT_SECONDS) -> bool:
        """Wait for something to be seen from outside, no longer than ``seconds``; whether it was."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not seen():
            if loop.time() > deadline:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True

    async def stop(self) -> None:
        """End the server."""
        if self._child is not None:
            await asyncio.to_thread(self._child.end)
