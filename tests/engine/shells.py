"""Both engines behind one interface, so that each test is written once; and a downstream that records all effects."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import pytest

from semel import Answer, AsyncEngine, Command, Engine, Permit, Policy, Scope
from semel.core.flow import MakeFlow
from semel.core.model import Record, Settling
from semel.core.outcomes import Outcome, Succeeded
from semel.engine.result import Refusal, Result
from semel.stores.backend import Backend
from semel.testing.attempts import bits

T = TypeVar("T")
Mode = Literal["sync", "async"]
Handler = Callable[[Permit], Answer]
SCOPE = Scope("acme", "alice", "pay")
MADE = Answer(201, ((b"location", b"/payments/1"),), b"made")


def command(key: str = "k", *, request: int = 0, policy: Policy | None = None, caller: str = "alice") -> Command:
    """A command; ``request`` tells payloads apart."""
    return Command(SCOPE._replace(caller=caller), key, bits("request", request, size=32), "1.tests", policy or Policy())


async def until(holds: Callable[[], bool]) -> None:
    """Turn the loop until it does."""
    for _ in range(1_000_000):
        if holds():
            return
        await asyncio.sleep(0)
    pytest.fail("it never did")


class Shell:
    """An engine, performed from ordinary code: the async one on a loop of its own."""

    def __init__(self, mode: Mode, backend: Backend, **options: Any) -> None:
        self.mode = mode
        self.runner: asyncio.Runner | None = asyncio.Runner() if mode == "async" else None
        self.engine: Any = (AsyncEngine if mode == "async" else Engine)(backend, **options)

    def _end(self, reply: Any) -> Any:
        return reply if self.runner is None else self.runner.run(reply)

    def open(self) -> None:
        self._end(self.engine.migrate())
        self.open_again()

    def open_again(self) -> None:
        self._end(self.engine.open())

    def run(self, what: Command, handler: Handler, *, wait_seconds: float = 0) -> Result:
        """Run one command. The same handler serves both engines."""

        async def handle(permit: Permit) -> Answer:
            return handler(permit)

        given: Any = handle if self.runner is not None else handler
        result: Result = self._end(self.engine.run(what, given, wait_seconds=wait_seconds))
        return result

    def claim(self, what: Command, *, wait_seconds: float = 0) -> Permit | Refusal:
        met: Permit | Refusal = self._end(self.engine.claim(what, wait_seconds=wait_seconds))
        return met

    def permit(self, what: Command) -> Permit:
        """A claim that must be granted."""
        met = self.claim(what)
        assert isinstance(met, Permit), met
        return met

    def settle(self, permit: Permit, outcome: Outcome | None = None) -> Settling:
        reply: Settling = self._end(self.engine.settle(permit, Succeeded(MADE) if outcome is None else outcome))
        return reply

    def perform(self, verb: str, make: MakeFlow[T]) -> T:
        reply: T = self._end(self.engine.perform(verb, make))
        return reply

    def row(self, what: Command) -> Record | None:
        id = self.engine.core.attempt(what).id
        rows: list[Record | None] = self.perform("read", lambda: self.engine.store.read((id,)))
        return rows[0]

    def reap(self) -> list[Record]:
        """Run one round of the reaper."""
        return self.perform("lapse", lambda: self.engine.store.lapse(100))

    def close(self) -> None:
        self._end(self.engine.close())
        self.abandon()

    def abandon(self) -> None:
        """End the process's own doings at once: nothing is waited for."""
        if self.runner is not None:
            self.runner.close()
        else:
            self.engine._upkeep.close()


@dataclass
class Ledger:
    """The downstream: every call it ever got, by the key that it deduplicates on. It never forgets."""

    calls: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def charge(self, key: str) -> None:
        with self._lock:
            self.calls.append(key)

    @property
    def effects(self) -> int:
        """Effects of a downstream that deduplicates."""
        return len(set(self.calls))
