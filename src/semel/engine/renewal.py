"""An engine's background work: renew live leases, and release claims without an owner.

An abandoned claim (its reply was lost, its caller cancelled) is released by its nonce, again and again until
the store confirms or the lease is over. Renewal is one call for all live permits, and ends at their deadline.
An unconfirmed settlement is retried for as long.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from semel.core.command_flow import settle_until_confirmed
from semel.core.contract import Store
from semel.core.flow import Flow, ask
from semel.core.model import Claim, Settlement, Settling
from semel.core.requests import Perform
from semel.engine.permit import Permit
from semel.engine.runner import AsyncPerformer, SyncPerformer
from semel.engine.state import Core
from semel.errors import SemelError, StoreTimeout, StoreUnavailable
from semel.operations.tracking import abandoning, settling
from semel.stores.process import begin_in_children, start_thread
from semel.stores.shield import begin_own_thread, run_shielded, serve_lost
from semel.workers.trouble import Trouble

THREAD_NAME: Final = "semel-upkeep"
ABANDON_EVERY_SECONDS: Final = 0.25
CLOSE_LOOK_SECONDS: Final = 0.02
ABANDON_MAX: Final = 200
P = TypeVar("P", SyncPerformer, AsyncPerformer)
_UNRENEWED: Final = "and so cannot renew the command's lease: nothing was run"
OUTAGE_SECONDS_MAX: Final = 600.0  # how long after its lease a claim's release is retried while the store fails


class AbandonedClaims:
    """Claims to be released, by record id and nonce, each until its lease would be over. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[tuple[bytes, bytes], float] = {}
        self._keeping: set[tuple[bytes, bytes]] = set()  # claims whose operations outlive their keys

    def __bool__(self) -> bool:
        return bool(self._until)

    def add(self, claim: Claim) -> None:
        """Add a claim that its caller has abandoned."""
        with self._lock:
            self._until[claim.id, claim.nonce] = time.monotonic() + claim.terms.lease_us / 1_000_000
            if claim.kept is not None:
                self._keeping.add((claim.id, claim.nonce))

    def release(self, store: Store, nonces: tuple[tuple[bytes, bytes], ...]) -> Callable[[], Any]:
        """Return a maker of the flow that releases these claims."""
        keeps = not self._keeping.isdisjoint(nonces)
        return lambda: abandoning(store, nonces, keeps)

    def batch(self) -> tuple[tuple[bytes, bytes], ...]:
        """Return the next claims to release, in the store's order."""
        with self._lock:
            return tuple(sorted(self._until)[:ABANDON_MAX])

    def forget_released(self, nonces: tuple[tuple[bytes, bytes], ...], gone: list[bool]) -> None:
        """Forget claims that the store has released, and those that it does not have although their lease is over."""
        now = time.monotonic()
        with self._lock:
            for nonce, seen in zip(nonces, gone, strict=True):
                if seen or self._until.get(nonce, now) <= now:  # another loop's round may have forgotten it already
                    self._forget(nonce)

    def forget_overdue(self, nonces: tuple[tuple[bytes, bytes], ...]) -> None:
        """Forget claims long overdue while the store fails; not at once, or an outage would leave them UNKNOWN."""
        now = time.monotonic()
        with self._lock:
            for nonce in nonces:
                if self._until.get(nonce, now) + OUTAGE_SECONDS_MAX <= now:
                    self._forget(nonce)

    def _forget(self, nonce: tuple[bytes, bytes]) -> None:
        self._until.pop(nonce, None)
        self._keeping.discard(nonce)


_NO_BEAT: Final = sys.maxsize


class _Upkeep(Generic[P]):
    """One round of background work, sync or async. A store error does not matter: the next round tries again."""

    _abandoned: AbandonedClaims
    _performer: P

    def __init__(self, core: Core, store: Store, performer: P) -> None:
        self._core = core
        self._store = store
        self._performer = performer
        self._trouble = Trouble("the renewal of leases")
        self._release_trouble = Trouble("the release of claims that were given up")
        self.begin_process()
        begin_in_children(self)

    def begin_process(self) -> None:
        """Start with nothing to do: at construction, and in a forked child."""
        self._abandoned = AbandonedClaims()

    def _renew_due(self) -> Flow[None]:
        """Renew the due leases in one call. Two renewals may fail before a lease is over."""
        permits = self._core.due()
        if not permits:
            return
        renewals = tuple(permit.holder for permit in permits)
        with suppress(SemelError):
            held = yield from ask(Perform("renew", lambda: self._store.renew(renewals)))
            self._core.note_renewals(permits, held)
            self._trouble.over()

    def _release_batch(self) -> Flow[None]:
        nonces = self._abandoned.batch()
        if not nonces:
            return
        try:
            gone = yield from ask(Perform("abandon", self._abandoned.release(self._store, nonces)))
        except SemelError:
            self._abandoned.forget_overdue(nonces)
        else:
            self._abandoned.forget_released(nonces, gone)
            self._release_trouble.over()

    def _note_release_error(self, error: Exception) -> None:
        self._release_trouble.note_error(error)
        self._abandoned.forget_overdue(self._abandoned.batch())


class AsyncUpkeep(_Upkeep[AsyncPerformer]):
    """Renews and releases on an event loop; holds the engine's background tasks."""

    def begin_process(self) -> None:
        """Start with nothing to do: at construction, and in a forked child."""
        super().begin_process()
        self._begin_loop(None)

    def _begin_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop = loop
        self._beat: asyncio.TimerHandle | None = None
        self.beat_us = _NO_BEAT  # the lease, in microseconds, that the timer was set for
        self._tasks: set[asyncio.Task[Any]] = set()
        self._release_task: asyncio.Task[Any] | None = None
        self._closing = False
        self._renew_task: asyncio.Task[Any] | None = None

    def _check_loop(self) -> None:
        """Drop timers and tasks of another loop."""
        loop = asyncio.get_running_loop()
        if self.loop is not loop:
            self._begin_loop(loop)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that ``close`` waits for."""
        self._check_loop()
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Wait for all spawned tasks, and release abandoned claims again."""
        self._check_loop()
        self._closing = True
        while self._tasks:  # handlers are among them: their leases are renewed to the end
            await asyncio.wait(set(self._tasks))
        if self._beat is not None:
            self._beat.cancel()
            self._beat, self.beat_us = None, _NO_BEAT
        self._closing = False

    def watch(self, permit: Permit) -> None:
        """Schedule renewals of this permit, even if the others have much longer leases."""
        loop = asyncio.get_running_loop()
        if self.loop is not loop:
            self._begin_loop(loop)
        if self.beat_us <= permit.claim.terms.lease_us:
            return  # the timer was set earlier, for a lease that is not longer
        at = loop.time() + self._core.beat_of(permit)
        if self._beat is None or at < self._beat.when():
            if self._beat is not None:
                self._beat.cancel()
            self._beat = loop.call_at(at, self._on_beat)
            self.beat_us = permit.claim.terms.lease_us

    def abandon(self, claim: Claim) -> None:
        """Release this claim in the background."""
        self._check_loop()
        self._abandoned.add(claim)
        if self._release_task is None or self._release_task.done():
            self._release_task = self.spawn(self._release())

    async def confirm(self, settlement: Settlement, permit: Permit, seconds: float) -> Settling:
        """Retry this settlement and wait so many seconds for its confirmation.

        Raises StoreTimeout: not confirmed meanwhile; it is retried in the background until the lease is over.
        """
        task = self.repeat(settlement, permit, seconds)
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            raise StoreTimeout("the outcome could not be confirmed by the store; it is being repeated")
        reply: Settling = task.result()
        return reply

    def repeat(self, settlement: Settlement, permit: Permit, seconds: float) -> asyncio.Task[Settling]:
        """Retry this settlement in a separate task until the lease expires, or for this many seconds if longer."""
        until = max(permit.claim.terms.lease_us / 1_000_000, seconds)
        return self.spawn(self._performer.drive(settle_until_confirmed(self._store, settlement, until)))

    def _schedule(self) -> None:
        seconds = self._core.beat_seconds()
        self._beat = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self._on_beat)
        leases_us = [permit.claim.terms.lease_us for permit in list(self._core.live.values())]
        self.beat_us = _NO_BEAT if seconds is None else min(leases_us, default=_NO_BEAT)

    def _on_beat(self) -> None:
        if self._core.due():
            self._renew_task = self.spawn(self.renew())
        self._schedule()

    async def renew(self) -> None:
        """Renew the due leases in one call."""
        try:
            await self._performer.drive(self._renew_due())
        except Exception as error:  # noqa: BLE001 - the next beat tries again; a lost task would be silent
            self._trouble.note_error(error)

    async def _release(self) -> None:
        while self._abandoned:
            try:
                await self._performer.drive(self._release_batch())
            except Exception as error:  # noqa: BLE001 - as in renew
                self._note_release_error(error)
            if self._abandoned and self._closing:
                self._abandoned = AbandonedClaims()
            elif self._abandoned:
                await asyncio.sleep(ABANDON_EVERY_SECONDS)


class SyncUpkeep(_Upkeep[SyncPerformer]):
    """Renews and releases in one lazily started thread."""

    def begin_process(self) -> None:
        """Start without a thread: at construction, and in a forked child."""
        super().begin_process()
        self._confirm_trouble = Trouble("the confirmation of settlements")
        self._unconfirmed: dict[Settlement, float] = {}  # until when each is repeated, in monotonic seconds
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    def close(self) -> None:
        """Wait for the live handlers, whose leases are renewed to the end; then end the thread.

        Unconfirmed settlements and abandoned claims are tried once more. It does not wait for a handler past its
        deadline, nor for one in the calling thread, which could never end.
        """
        while any(self._is_awaited(permit) for permit in list(self._core.live.values())):
            threading.Event().wait(CLOSE_LOOK_SECONDS)
        run_shielded(self._end)

    def _is_awaited(self, permit: Permit) -> bool:
        ours = permit.handler_thread not in (None, threading.get_ident())
        return ours and time.monotonic() < permit.deadline_monotonic

    def _end(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
        self._confirm()
        self._release()
        self.begin_process()

    def watch(self) -> None:
        """Ensure that a thread renews all live permits and does the other background work.

        Raises StoreUnavailable: this process cannot start the thread that would renew them.
        """
        with self._changed:
            if self._thread is None and not self._closing:
                self._thread = start_thread(self._serve, THREAD_NAME, _UNRENEWED)
            self._changed.notify()

    def abandon(self, claim: Claim) -> None:
        """Release this claim in the background."""
        self._abandoned.add(claim)
        try:
            self.watch()
        except StoreUnavailable:  # no thread can start: release once here; the next thread tries again
            self._release()

    def confirm(self, settlement: Settlement, seconds: float) -> None:
        """Repeat this settlement in the background, until the store has it or so many seconds are over."""
        with self._changed:
            self._unconfirmed[settlement] = time.monotonic() + seconds
        with suppress(StoreUnavailable):  # no thread can start: the next thread retries, or ``close``
            self.watch()

    def renew(self) -> None:
        """Renew the due leases in one call."""
        try:
            self._performer.drive(self._renew_due())
        except Exception as error:  # noqa: BLE001 - the next beat tries again: this thread must outlive everything
            self._trouble.note_error(error)

    def _release(self) -> None:
        try:
            self._performer.drive(self._release_batch())
        except Exception as error:  # noqa: BLE001 - as in renew
            self._note_release_error(error)

    def _confirm(self) -> None:
        with self._changed:
            settlements = tuple(sorted(self._unconfirmed, key=lambda settlement: settlement.id))
        if not settlements:
            return
        over: set[Settlement] = set()
        for settlement in settlements:
            try:
                self._performer.store_call("settle", settling(self._store, settlement).make)
                over.add(settlement)
            except SemelError:  # the store is unreachable: the others would time out one after the other
                break
            except Exception as error:  # noqa: BLE001 - one that fails keeps no other from being confirmed
                self._confirm_trouble.note_error(error)
        if len(over) == len(settlements):
            self._confirm_trouble.over()
        now = time.monotonic()
        with self._changed:
            for settlement in settlements:
                if settlement in over or self._unconfirmed[settlement] <= now:
                    del self._unconfirmed[settlement]

    def _serve(self) -> None:
        begin_own_thread()
        while True:
            with self._changed:
                if self._closing:
                    return
                beat = self._core.beat_seconds()
                self._changed.wait(ABANDON_EVERY_SECONDS if self._abandoned or self._unconfirmed else beat)
            serve_lost()
            self.renew()
            self._confirm()
            self._release()
