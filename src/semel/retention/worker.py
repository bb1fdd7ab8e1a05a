"""The reaper, which makes lapsed records visible and forgets expired ones.

A lapsed EXTERNAL command reads UNKNOWN within its lease and one second, whether or not a client retries;
expired answers and tombstones go hourly. Several reapers on one store are safe: every write they make is
a compare-and-set. The reaper never decides an outcome; that is an operator's or a reconciler's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Any, Final

from semel.core.flow import Flow
from semel.core.model import Find, Purged, Record, State
from semel.core.timing import check_seconds
from semel.engine.async_engine import AsyncEngine
from semel.errors import PolicyError, SchemaError, StoreError
from semel.operations.flow import lapse
from semel.policy import SPAN_SECONDS_MAX
from semel.retention.flow import PURGE_CHUNK, PurgedAll, purge_all, rest_seconds
from semel.retention.rules import PurgeClock
from semel.workers.loop import Loop
from semel.workers.rules import REAPER
from semel.workers.trouble import Trouble
from semel.workers.turns import TURNS_PER_LOOK, Turns, is_due, seconds_ahead

_LOG: Final = logging.getLogger("semel")
LAPSE_CHUNK: Final = 100
EVERY_SECONDS_MAX: Final = 0.75  # lease + 1 s is guaranteed; the rest of the second is for the call itself


class Reaper(Loop):
    """Finds lapsed and expired records in an engine's store. ``async with Reaper(engine):`` runs it during the block.

    Parameters: ``every_seconds`` between two looks for lapsed leases (at most 0.75); ``purge_every_seconds``
    between two purges.

    >>> import asyncio
    >>> from semel import AsyncEngine
    >>> async def main() -> int:
    ...     async with AsyncEngine.connect("memory://") as engine:
    ...         return await Reaper(engine).run_once()
    >>> asyncio.run(main())
    0
    """

    def __init__(self, engine: AsyncEngine, every_seconds: float = 0.5, purge_every_seconds: float = 3600) -> None:
        check_seconds("every_seconds", every_seconds, least=0, most=SPAN_SECONDS_MAX)
        if not 0 < every_seconds <= EVERY_SECONDS_MAX:
            raise PolicyError(
                f"every_seconds must be more than 0 and at most {EVERY_SECONDS_MAX}, so that UNKNOWN is visible "
                f"within a second of the lapse; it is {every_seconds!r}"
            )
        check_seconds("purge_every_seconds", purge_every_seconds, most=SPAN_SECONDS_MAX)
        super().__init__("semel-reaper", every_seconds)
        self._engine = engine
        self._purge_every_seconds = purge_every_seconds
        self._purging: asyncio.Task[None] | None = None
        self._purge_at = 0.0
        self._purge_trouble = Trouble("the reaper's purge")
        self._clock = PurgeClock()
        self._turns = Turns(engine.store, REAPER, TURNS_PER_LOOK * every_seconds, engine.perform)

    async def run_once(self) -> int:
        """Make all lapsed records of unknown outcome visible; return how many there were.

        Raises StoreError: the next call does the rest.
        """
        engine = self._engine
        marked = 0
        while True:
            lapsed = await engine.perform("lapse", lambda: lapse(engine.store, LAPSE_CHUNK))
            for record in lapsed:
                self._tell(record)
            marked += len(lapsed)
            if len(lapsed) < LAPSE_CHUNK:
                return marked

    async def purge(self, chunk: int = PURGE_CHUNK) -> Purged:
        """Walk the whole store once; returns the numbers of dropped answers and deleted records. Raises StoreError.

        It leaves published events to their relay, which knows how long they are kept.
        """
        engine, observer = self._engine, self._engine.core.observer

        def tell(kind: str, gone: int) -> None:
            observer.event("purged", gone, {"kind": kind}, {})

        total = await self._drive(purge_all(engine.store, chunk, keep_events_us=None, tell=tell))
        # Counting reads every record, as the walk has just done; more often would be too much load.
        counts = await engine.perform("counts", engine.store.counts)
        for state in State:
            observer.event("records", counts.get(state, 0), {"state": state.name}, {})
        return Purged(total.scanned, total.answers, total.records, None)

    async def run(self) -> None:
        """Reap until cancelled. A store error is reported to the observer, and the next look tries again."""
        self._purge_at = self._purge_time()
        with suppress(StoreError, SchemaError):  # the clock is then read before the first purge
            await self._read_clock()
        await super().run()

    async def _look(self) -> None:
        with suppress(StoreError, SchemaError):  # as in _purge_meanwhile
            turn = await self._take_turn()
            if is_due(turn):
                await self.run_once()
            if turn is not None:
                self._rest = seconds_ahead(turn)
        if self._purging is not None and self._purging.done():
            self._purging = None
        if time.monotonic() >= self._purge_at and self._purging is None:
            self._purge_at = self._purge_time()
            self._purging = asyncio.create_task(self._purge_meanwhile(), name="semel-purge")

    async def _leave(self) -> None:
        if self._purging is not None:
            self._purging.cancel()
            await asyncio.wait({self._purging})
            self._purging = None

    async def _purge_meanwhile(self) -> None:
        # A walk over millions of records takes minutes; records that lapse meanwhile must still become visible in time.
        try:
            moved = await self._read_clock()
            if not moved:
                await self.purge()
            else:
                _LOG.warning(
                    "nothing was purged: the store's clock is %.1f h later than this process can explain. Check the "
                    "clock of the store's host (NTP). The reaper purges again once the clock has gone right for a day; "
                    "run semel purge --clock-is-right where it is right",
                    moved / 3_600_000_000,
                )
        except (StoreError, SchemaError):  # the observer was notified; the next purge runs within an hour
            return
        except Exception as error:  # noqa: BLE001 - what cannot be purged must not keep lapses from being seen
            self._purge_trouble.note_error(error)
        else:
            self._purge_trouble.over()

    async def _read_clock(self) -> int:
        """Return the unexplained movement of the store's clock, in microseconds. Raises StoreError."""
        store = self._engine.store
        found = await self._engine.perform("find", lambda: store.find(Find(limit=1)))
        newest = max((record.created_at for record in found.records), default=None)
        return self._clock.doubt(found.now, newest, time.monotonic())

    def _purge_time(self) -> float:
        # Spread over the second half of the interval: the processes of one service do not purge together.
        return time.monotonic() + self._purge_every_seconds * (1 - self._random.random() / 2)

    def _tell(self, record: Record) -> None:
        core = self._engine.core
        core.tell_lapsed(record.operation, record.operation_id, record.caller)
        core.tell_unknown(record.operation, record.doubt or "lapsed", record.operation_id, record.caller)

    async def _drive(self, flow: Flow[PurgedAll]) -> PurgedAll:
        needed: Any = next(flow)
        try:
            while True:
                began = time.monotonic()
                done: Any = await self._engine.perform(needed.verb, needed.make)
                await asyncio.sleep(rest_seconds(done, time.monotonic() - began))
                needed = flow.send(done)
        except StopIteration as stop:
            total: PurgedAll = stop.value
            return total
