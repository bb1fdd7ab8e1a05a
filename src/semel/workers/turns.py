"""Take turns: the workers of one kind look one after the other across all processes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from semel.core.flow import MakeFlow
from semel.errors import SchemaError, StatementRefused, StoreReadOnly
from semel.workers.rules import TakesTurns, Turn

TURNS_PER_LOOK: Final = 2.2  # with the usual half second: all processes together look each 1.1 s
WITHOUT_SECONDS: Final = 60.0  # before a store that refused turns is asked again
DUE_LATER_US: Final = 10_000


class Turns:
    """The turns of one worker.

    Parameters: ``store`` any store; ``kind`` as :class:`~semel.workers.rules.TakesTurns` has it; ``every_seconds``
    between two looks of all workers of this kind together; ``perform`` performs a store call.
    """

    def __init__(
        self,
        store: object,
        kind: str,
        every_seconds: float,
        perform: Callable[[str, MakeFlow[Turn]], Awaitable[Any]],
    ) -> None:
        self._store = store if isinstance(store, TakesTurns) else None
        self._kind = kind
        self._every_us = max(1, int(every_seconds * 1_000_000))
        self._perform = perform
        self._mine: int | None = None
        self._due = 0.0  # the time of that turn, by this process's clock
        self._without_until = float("-inf")

    async def take(self) -> Turn | None:
        """Take a turn; None where the store knows none, so that each worker looks for itself.

        Raises StoreError: the store is unavailable.
        """
        store = self._store
        if store is None or time.monotonic() < self._without_until:
            return None
        mine, has_come = self._mine, time.monotonic() >= self._due
        try:
            turn: Turn = await self._perform("turn", lambda: store.turn(self._kind, mine, self._every_us))
            if has_come and turn.next == mine and turn.next - turn.now > self._every_us:
                # The turn has come here, but is far away by the store's clock, which was set back: none would look.
                turn = await self._perform("turn", lambda: store.turn(self._kind, None, self._every_us))
        except (SchemaError, StatementRefused, StoreReadOnly):  # not migrated, no right to it, a standby
            self._mine, self._without_until = None, time.monotonic() + WITHOUT_SECONDS
            return None
        self._mine, self._due = turn.next, time.monotonic() + seconds_to_turn(turn)
        return turn


def is_due(turn: Turn | None) -> bool:
    """Whether there may be something to take over or to mark."""
    return turn is None or (turn.earliest is not None and turn.earliest <= turn.now)


def kind_of(kind: str, operations: Iterable[str]) -> str:
    """The kind of a worker that is about some operations only: those of others are no part of its turns.

    >>> kind_of("completer", ["b", "a"]) == kind_of("completer", ["a", "b"]) != kind_of("completer", ["a"])
    True
    """
    named = "\0".join(sorted(operations)).encode("utf-8", "surrogatepass")
    return f"{kind}:{hashlib.sha256(named).hexdigest()[:16]}"


def seconds_to_turn(turn: Turn) -> float:
    """The seconds until this worker's next turn."""
    return (turn.next - turn.now) / 1_000_000


def seconds_ahead(turn: Turn) -> float:
    """The pause after a look: until this worker's next turn, or an earlier due time."""
    ahead = turn.next - turn.now
    if turn.earliest is not None and turn.now < turn.earliest < turn.next:
        ahead = turn.earliest - turn.now + DUE_LATER_US
    return ahead / 1_000_000
