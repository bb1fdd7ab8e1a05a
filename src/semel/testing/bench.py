"""The bench of a conformance case: one store with its driver, a settable clock, and a way to perform flows.

The same cases run through ``run`` and through ``run_async``; the racers are threads or tasks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from semel.core.flow import Flow, MakeFlow
from semel.core.model import (
    Answer,
    Claim,
    Grant,
    Proceed,
    Record,
    Replay,
    Resolution,
    Resolving,
    Settling,
    State,
    Verdict,
)
from semel.stores.backend import Backend
from semel.testing.attempts import OK, attempt, renewal, settlement
from semel.testing.clock import SettableClock

R = TypeVar("R")
T = TypeVar("T")
Mode = Literal["sync", "async"]


@dataclass(frozen=True, slots=True)
class Subject:
    """A store under test, new and empty, and two ways around it.

    ``corrupt`` writes a record without any checks, like a bit flip or a restore; ``elsewhere`` opens the same store
    like another process.
    """

    backend: Backend
    corrupt: Callable[[Record], None]
    elsewhere: Callable[[], Backend]


MakeSubject = Callable[[SettableClock], Subject]


class Bench:
    """One migrated, empty store."""

    def __init__(self, subject: Subject, clock: SettableClock, runner: asyncio.Runner | None) -> None:
        self.subject = subject
        self.backend = subject.backend
        self.store = subject.backend.store
        self.corrupt = subject.corrupt
        self.clock = clock
        self._runner = runner

    def do(self, make: MakeFlow[T]) -> T:
        """Perform one flow."""
        driver: Any = self.backend.driver
        if self._runner is None:
            reply: T = driver.run(make)
            return reply
        seen: T = self._runner.run(driver.run_async(make))
        return seen

    def race(self, makes: Sequence[MakeFlow[T]]) -> list[T]:
        """Perform flows concurrently: each in its own thread or task."""
        driver: Any = self.backend.driver
        if self._runner is not None:

            async def all_at_once() -> list[T]:
                replies: list[T] = await asyncio.gather(*(driver.run_async(make) for make in makes))
                return replies

            return self._runner.run(all_at_once())
        latch = threading.Barrier(len(makes))

        def one(make: MakeFlow[T]) -> T:
            latch.wait()
            reply: T = driver.run(make)
            return reply

        with ThreadPoolExecutor(len(makes)) as threads:
            return list(threads.map(one, makes))

    def close(self) -> None:
        """Close the store, as an ending process does."""
        if self._runner is None:
            self.backend.driver.close()
        else:
            self._runner.run(self.backend.driver.close_async())

    # --- one verb, one request ----------------------------------------------------------------

    def _ask_one(self, name: str, verb: Callable[[Sequence[R]], Flow[list[T]]], request: R) -> T:
        """Perform one request as the engines do: an async one lets the driver batch those of many callers."""
        ask_one = getattr(self.backend.driver, "ask_one", None)
        if self._runner is None or ask_one is None:
            return self.do(lambda: verb((request,)))[0]

        async def ask() -> T:
            reply: T = await ask_one(name, verb, request)
            return reply

        return self._runner.run(ask())

    def claim(self, claim: Claim) -> Verdict:
        """Perform one claim."""
        return self._ask_one("claim", self.backend.claim_unseen or self.store.claim, claim)

    def look_for_kept(self, claim: Claim) -> Replay | None:
        """Look for the kept answer of this claim's request, as an engine does before it claims."""
        known = (claim.id, claim.recipe, claim.fingerprint)
        at_once = getattr(self.backend.driver, "kept_answer", None)
        looks = getattr(self.store, "look_kept", None)
        if at_once is not None:
            return at_once(*known) or None
        if looks is not None:
            found: Replay | None = self.do(lambda: looks((known,)))[0]
            return found
        seen = self.do(lambda: self.store.look((claim,)))[0]
        return seen if isinstance(seen, Replay) else None

    def grant(self, claim: Claim | None = None) -> Grant:
        """Perform a claim that must be granted."""
        verdict = self.claim(attempt() if claim is None else claim)
        assert isinstance(verdict, Proceed), verdict
        return verdict.grant

    def settle(
        self, grant: Grant, state: State = State.SUCCEEDED, answer: Answer = OK, *, kept: bool = True, doubt: str = ""
    ) -> Settling:
        """Perform one settlement."""
        return self._ask_one("settle", self.store.settle, settlement(grant, state, answer, kept=kept, doubt=doubt))

    def renew(self, grant: Grant) -> bool:
        """Perform one renewal."""
        return self.do(lambda: self.store.renew((renewal(grant),)))[0]

    def abandon(self, claim: Claim) -> bool:
        """Abandon one claim."""
        return self.do(lambda: self.store.abandon(((claim.id, claim.nonce),)))[0]

    def mark_not_kept(self, grant: Grant) -> bool:
        """Mark that one answer will not be kept."""
        return self.do(lambda: self.store.mark_not_kept((renewal(grant),)))[0]

    def row(self, id: bytes | None = None) -> Record:
        """Read one record that must exist."""
        [row] = self.do(lambda: self.store.read((attempt().id if id is None else id,)))
        assert row is not None
        return row

    def resolve(
        self,
        grant: Grant,
        *,
        happened: bool = True,
        answer: Answer | None = None,
        forced: bool = False,
        refused: bool = False,
        ends: tuple[tuple[str, bool], ...] | None = None,
    ) -> Resolving:
        """Settle, as an operator, the record as this grant left it."""
        resolution = Resolution(grant.id, grant.fence, happened, answer, "olga", "asked the provider", forced)
        resolution = resolution._replace(refused=refused, ends=ends)
        return self.do(lambda: self.store.resolve(resolution))

    def lapse(self, limit: int = 100) -> list[Record]:
        """Perform one round of the reaper."""
        return self.do(lambda: self.store.lapse(limit))

    def purge(self) -> tuple[int, int]:
        """Purge everything in chunks of two; return the numbers of dropped answers and deleted records."""
        dropped = forgotten = 0
        after: int | None = None
        while True:
            done = self.do(partial(self.store.purge, after, 2))
            dropped, forgotten = dropped + done.answers_dropped, forgotten + done.forgotten
            if done.next_after is None:
                return dropped, forgotten
            after = done.next_after


@contextmanager
def bench(make: MakeSubject, mode: Mode) -> Iterator[Bench]:
    """Yield a bench over a new, empty store; close it at the end."""
    clock = SettableClock()
    runner = asyncio.Runner() if mode == "async" else None
    ready = Bench(make(clock), clock, runner)
    try:
        ready.do(lambda: ready.store.migrate("conformance", b"none"))
        yield ready
    finally:
        ready.close()
        if runner is not None:
            runner.close()
