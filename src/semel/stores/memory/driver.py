"""The driver of the memory store: one table, one lock, the host's clock.

A memory store belongs to one process. In a forked child it would be a second, empty truth, so that a
retry could run twice unnoticed: there it refuses to answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal, NoReturn, TypeVar

from semel.core.contract import Asked
from semel.core.flow import MakeFlow
from semel.core.model import Answer, Claim, Replay, Settlement, Settling, Verdict
from semel.errors import StoreUnavailable
from semel.stores.clock import Clock, system_clock
from semel.stores.memory.store import Table, claim_on, find_replay_of, settle_on
from semel.stores.process import begin_in_children

T = TypeVar("T")


class LocalDriver:
    """Runs the memory store's flows. Thread-safe; never blocks for longer than one verb."""

    def __init__(self, *, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._table = Table()
        self._lock: threading.Lock | _ClosedInChildren = threading.Lock()
        begin_in_children(self)

    def begin_process(self) -> None:
        """Refuse every call in a forked child."""
        self._lock, self._table = _ClosedInChildren(), Table()

    def run(self, make: MakeFlow[T]) -> T:
        """Run a flow to its end."""
        flow = make()
        try:
            needed: Any = next(flow)  # a TableCall: the memory store has no other ask
            while True:
                with self._lock:
                    reply = needed.act(self._table, self._clock())
                needed = flow.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def claim_at_once(
        self, id: bytes, asked: Asked, attempt: Callable[[Any, bytes], Claim]
    ) -> Replay | tuple[Claim, Verdict | int]:
        """As :class:`~semel.core.contract.AnswersAtOnce`."""
        records = self._table.records
        found = records.get(id)
        if found is not None:
            kept = find_replay_of(found, id, asked.recipe, asked.fingerprint, self._clock())
            if kept is not None:
                return kept
        claim = attempt(asked, id)
        with self._lock:
            if id in records or claim.quota is not None:
                return claim, claim_on(self._table, claim, self._clock())
            granted = records[id] = (claim, self._clock())  # as ``claim_on`` does
            return granted

    def settle_at_once(self, settlement: Settlement) -> Settling:
        """As :class:`~semel.core.contract.AnswersAtOnce`."""
        with self._lock:
            return settle_on(self._table, settlement, self._clock())

    def succeed_at_once(self, claim: Claim, fence: int, answer: Answer) -> bool:
        """As :class:`~semel.core.contract.AnswersAtOnce`."""
        records, id = self._table.records, claim.id
        with self._lock:
            if records.get(id) != (claim, fence):  # it was read since
                return False
            records[id] = (claim, fence, answer, self._clock())
            return True

    def kept_answer(self, id: bytes, recipe: str, fingerprint: bytes) -> Replay | Literal[False] | None:
        """As :class:`~semel.core.contract.LooksAtOnce`."""
        found = self._table.records.get(id)
        return False if found is None else find_replay_of(found, id, recipe, fingerprint, self._clock())

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Run a flow to its end, without ever suspending."""
        return self.run(make)

    def close(self) -> None:
        """Does nothing: the table goes with the driver."""

    async def close_async(self) -> None:
        """Does nothing, as :meth:`close`."""


class _ClosedInChildren:
    """The lock in a forked child: it lets no thread in."""

    def __enter__(self) -> NoReturn:
        raise StoreUnavailable(
            "a memory:// store cannot be used after fork: each worker would have its own truth; "
            "use sqlite:/// for several processes, or connect after the fork"
        )

    def __exit__(self, *_: object) -> None:
        """Does nothing."""
