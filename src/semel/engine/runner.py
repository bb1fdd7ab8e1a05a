"""Perform the engine's asks: on an event loop, and in ordinary threads.

These two and the two ``Upkeep`` classes are the only code below the shells with a sync and an async form.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from semel.core.contract import Known
from semel.core.flow import Flow, MakeFlow
from semel.core.model import AnswerKind, Claim, Replay, Settled, Settlement, Settling, Verdict
from semel.core.requests import (
    Attempt,
    Begin,
    Commit,
    Elapsed,
    Jitter,
    Pause,
    PauseToLook,
    Perform,
    PerformOne,
    Rollback,
    SettleWithin,
    Within,
)
from semel.engine.opening import AsyncFirstLook, FirstLook, introduction
from semel.engine.state import Core
from semel.errors import SchemaError, SemelError, StoreError, StoreUnavailable
from semel.sealing.rules import Seals
from semel.stores.backend import Backend
from semel.stores.batching import Coalescers
from semel.stores.shield import pause, run_shielded

if TYPE_CHECKING:
    from semel.engine.permit import Permit
    from semel.steps.run import AsyncSteps, SyncSteps

ANSWERED_MAX: Final = 16_384  # ids that a process remembers: about two megabytes
_KEPT: Final = AnswerKind.KEPT
R = TypeVar("R")
T = TypeVar("T")


class _Performer:
    def __init__(self, core: Core, backend: Backend) -> None:
        self._core = core
        self._backend = backend
        self._driver = backend.driver

    @property
    def sealer(self) -> Seals | None:
        """The engine's sealer."""
        return self._core.sealer


class AsyncPerformer(_Performer):
    """Performs engine flows on an event loop."""

    def __init__(self, core: Core, backend: Backend) -> None:
        super().__init__(core, backend)
        # ``store_one`` without an observer.
        self.ask_one: Callable[..., Awaitable[Any]] = getattr(self._driver, "ask_one", self._alone)
        batches: bool = getattr(self._driver, "coalesces", False)
        if batches:
            self.ask_one = Coalescers(
                self._driver.run_uncut, self._driver.patience_seconds, backend.lane, backend.locate
            ).ask
        # Set for a driver that replies without awaiting.
        self.claim_at_once: Callable[..., Replay | tuple[Claim, Verdict | int]] | None = getattr(
            self._driver, "claim_at_once", None
        )
        self.settle_at_once: Callable[[Settlement], Settling] | None = getattr(self._driver, "settle_at_once", None)
        core.succeed_in_store = getattr(self._driver, "succeed_at_once", None)
        self.kept_answer: Callable[[bytes, str, bytes], Replay | Literal[False] | None] | None = getattr(
            self._driver, "kept_answer", None
        )
        # For a store whose look is a round trip: the records that this process has seen answered.
        self._look_kept: Callable[[Sequence[Known]], Flow[list[Replay | None]]] | None = (
            getattr(backend.store, "look_kept", None) if batches else None
        )
        self.answered: set[bytes] = set()
        self.first_look = AsyncFirstLook(core, lambda: self.drive(introduction(core, backend)))

    def steps_of(self, permit: Permit) -> AsyncSteps:
        """The steps of a permit whose operation declares them."""
        from semel.steps.run import AsyncSteps  # with the forms of results, which only steps need

        return AsyncSteps(permit, self._backend, self)

    def store_call(self, verb: str, make: MakeFlow[T]) -> Awaitable[T]:
        """Make one store call."""
        return self._through(verb, self._driver.run_async, make)

    def store_one(self, verb: str, many: Callable[[Sequence[R]], Flow[list[T]]], request: R) -> Awaitable[T]:
        """Make one request of a verb that takes many, batched with other callers' if the driver gains by it.

        Raises StoreUnavailable at once if too many requests are waiting.
        """
        if self._core.observing:
            return self._through(verb, self.ask_one, verb, many, request)
        return self.ask_one(verb, many, request)

    async def look_kept(self, id: bytes, recipe: str, fingerprint: bytes) -> Replay | None:
        """Return the kept answer of a record that is ``answered``; None if only a claim can tell what is there.

        Raises StoreTimeout: a claim would wait as long again.
        """
        assert self._look_kept is not None
        try:
            kept: Replay | None = await self.store_one("look_kept", self._look_kept, (id, recipe, fingerprint))
        except StoreUnavailable:  # the look was refused, or not sent: nothing is known, and a claim may succeed
            kept = None
        if kept is None:
            self.answered.discard(id)
        return kept

    def note_answered(self, id: bytes) -> None:
        """Remember that this record has a kept answer."""
        if self._look_kept is not None:
            if len(self.answered) >= ANSWERED_MAX:
                self.answered.clear()  # for a record that is forgotten here, the engine claims
            self.answered.add(id)

    def note_settled(self, settlement: Settlement, reply: Settling) -> None:
        """Note that a record was settled and so may have a kept answer."""
        if type(reply) is Settled and settlement.answer_kind is _KEPT:
            self.note_answered(settlement.id)

    async def _alone(self, verb: str, many: Callable[[Sequence[R]], Flow[list[T]]], request: R) -> T:
        try:
            replies: list[T] = await self._driver.run_async(partial(many, (request,)))
            return replies[0]
        except SchemaError as error:
            self._backend.locate(error)
            raise

    async def _through(self, verb: str, call: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Make a store call and report it to the observer."""
        core = self._core
        started = time.perf_counter() if core.observing else 0.0
        try:
            return await call(*arguments)
        except SchemaError as error:
            self._backend.locate(error)
            core.tell_store_error(verb, error)
            raise
        except StoreError as error:
            core.tell_store_error(verb, error)
            raise
        finally:
            if core.observing:
                core.tell_store_call(verb, time.perf_counter() - started)

    async def drive(self, flow: Flow[T], attempt: Callable[[], Awaitable[Verdict]] | None = None) -> T:
        """Perform a flow to its end; an error of the store's is thrown into it, which may repeat it or clean up."""
        try:
            needed = next(flow)
            while True:
                try:
                    reply = await (attempt() if attempt and type(needed) is Attempt else self._answer(needed))
                except SemelError as error:
                    needed = flow.throw(error)
                else:
                    needed = flow.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except SchemaError as error:  # of a unit, which asks its own connection
            self._backend.locate(error)
            raise

    def _answer(self, needed: Any) -> Awaitable[Any]:
        kind = type(needed)
        if kind is Within:
            within: Awaitable[Any] = needed.unit.run_async(needed.make)
            return within
        if kind is Begin:
            begun: Awaitable[Any] = needed.join() if needed.join is not None else self._backend.begin_async()
            return begun
        if kind is SettleWithin:
            settled: Awaitable[Any] = needed.unit.settle_async(needed.needed)
            return settled
        return self._perform(needed)

    async def _perform(self, needed: Any) -> Any:
        match needed:
            case PerformOne():
                return [await self.store_one(needed.verb, needed.many, needed.request)]
            case Perform():
                return await self.store_call(needed.verb, needed.make)
            case Commit():
                return await needed.unit.commit_async()
            case Rollback():
                return await needed.unit.rollback_async()
            case Elapsed():
                return time.monotonic()
            case Jitter():
                return self._core.jitter()
            case Pause():
                return await asyncio.sleep(needed.seconds)
            case PauseToLook():
                return await self._pause_to_look(needed)
            case _:
                raise AssertionError(f"no driver performs {type(needed).__name__}")

    async def _pause_to_look(self, needed: PauseToLook) -> bool:
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()

        def wake(to_look: bool) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile, which must not fail the settlement
                loop.call_soon_threadsafe(lambda: None if woken.done() else woken.set_result(to_look))

        with self._core.waking(needed, wake) as seconds:
            await asyncio.wait((woken,), timeout=seconds)
        return (woken.done() and woken.result()) or self._core.looks(needed)


class SyncPerformer(_Performer):
    """Performs engine flows for ordinary threads: in threads that no exception from outside reaches (``shield``)."""

    def __init__(self, core: Core, backend: Backend) -> None:
        super().__init__(core, backend)
        self.first_look = FirstLook(core, lambda: self.drive(introduction(core, backend)))

    def steps_of(self, permit: Permit) -> SyncSteps:
        """The steps of a permit whose operation declares them."""
        from semel.steps.run import SyncSteps  # with the forms of results, which only steps need

        return SyncSteps(permit, self._backend, self)

    def store_call(self, verb: str, make: MakeFlow[T]) -> T:
        """Make one store call; every call passes here, and is observed here."""
        return run_shielded(lambda: self._store_call(verb, make))

    def _store_call(self, verb: str, make: MakeFlow[T]) -> T:
        core = self._core
        started = time.perf_counter()
        try:
            seen: T = self._driver.run(make)
            return seen
        except SchemaError as error:
            self._backend.locate(error)
            core.tell_store_error(verb, error)
            raise
        except StoreError as error:
            core.tell_store_error(verb, error)
            raise
        finally:
            core.tell_store_call(verb, time.perf_counter() - started)

    def drive(self, flow: Flow[T], attempt: Callable[[], Verdict] | None = None) -> T:
        """Perform a flow to its end; an error of the store's is thrown into it, which may repeat it or clean up."""
        return run_shielded(lambda: self.drive_here(flow, attempt))

    def drive_here(self, flow: Flow[T], attempt: Callable[[], Verdict] | None = None) -> T:
        """Perform a flow in the calling thread, which may own the user's connection: only for joined units."""
        try:
            needed = next(flow)
            while True:
                try:
                    reply = attempt() if attempt and type(needed) is Attempt else self._answer(needed)
                except SemelError as error:
                    needed = flow.throw(error)
                else:
                    needed = flow.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except SchemaError as error:  # of a unit, which asks its own connection
            self._backend.locate(error)
            raise

    def _answer(self, needed: Any) -> Any:
        match needed:
            case Perform():
                return self.store_call(needed.verb, needed.make)
            case Within():
                return needed.unit.run(needed.make)
            case SettleWithin():
                return needed.unit.settle(needed.needed)
            case Commit():
                return needed.unit.commit()
            case Rollback():
                return needed.unit.rollback()
            case Begin():
                return needed.join() if needed.join is not None else self._backend.begin()
            case Elapsed():
                return time.monotonic()
            case Jitter():
                return self._core.jitter()
            case Pause():
                return pause(threading.Event(), needed.seconds)
            case PauseToLook():
                return self._pause_to_look(needed)
            case _:
                raise AssertionError(f"no driver performs {type(needed).__name__}")

    def _pause_to_look(self, needed: PauseToLook) -> bool:
        woken, told = threading.Event(), [False]

        def wake(to_look: bool) -> None:
            told[0] = told[0] or to_look
            woken.set()

        with self._core.waking(needed, wake) as seconds:
            pause(woken, seconds)
        return told[0] or self._core.looks(needed)
