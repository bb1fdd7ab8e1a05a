"""Turns by which the workers of one kind look one after the other across all processes.

The workers of one process on one store look together, in one statement: they share turns with processes that run the
same kinds of workers. A worker that wakes for its turn, or when a lease ends, finds the answer of the one that woke
before it. Nothing changes for a single kind: a process with only a reaper shares the turns of reapers.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from time import monotonic
from typing import Any, Final, cast
from weakref import WeakKeyDictionary, WeakSet

from semel.core.flow import Flow, MakeFlow
from semel.errors import SchemaError, StatementRefused, StoreReadOnly
from semel.workers.rules import REAPER, TakesTurns, Turn

TURNS_PER_LOOK: Final = 2.2  # with the usual half second: all processes together look each 1.1 s
WITHOUT_SECONDS: Final = 60.0  # the pause before asking a store again that refused turns
DUE_LATER_US: Final = 10_000
SLOW_SECONDS: Final = 1.0  # an answer that takes longer comes too late for the end of a lease
APART_SECONDS: Final = 60.0  # how long a relay then looks by itself, from its last slow look on


class Turns:
    """The turns of one worker.

    Parameters: ``store`` any store; ``kind`` as :class:`~semel.workers.rules.TakesTurns` has it; ``every_seconds``
    between two looks of all workers of this kind together; ``perform`` performs a store call; ``earliest_of`` when a
    turn says that there will be something to do (None: nothing is in sight); ``with_events`` takes a turn that looks at
    the outbox too.
    """

    def __init__(
        self,
        store: object,
        kind: str,
        every_seconds: float,
        perform: Callable[[str, MakeFlow[Turn]], Awaitable[Any]],
        *,
        earliest_of: Callable[[Turn], int | None] = lambda turn: turn.earliest,
        with_events: Callable[[str, int | None, int, Callable[[], Flow[Any]]], Flow[Turn]] | None = None,
    ) -> None:
        self.store: Any = store if isinstance(store, TakesTurns) else None
        self.kind = kind
        self.every_us = max(1, int(every_seconds * 1_000_000))
        self.with_events = with_events
        self.wanted: int | None = None  # an answer of this time, by the store's clock, or later serves this worker
        self.apart_until = float("-inf")  # the time until which it looks by itself
        self._came: int | None = None  # the time that it wanted before the last look; None: that was the first look
        self._perform = perform
        self._earliest_of = earliest_of
        self._lookout: _Lookout | None = None

    async def take(self) -> Turn | None:
        """Take a turn; None if the store has no turns, so that each worker looks for itself.

        Raises StoreError: the store is unavailable.
        """
        if self.store is None:
            return None
        self._lookout, self._came = _lookout_of(self), self.wanted
        answer = await self._lookout.look(self)
        if answer is None:
            self.wanted = None
            return None
        turn, seconds = answer
        earliest = self._earliest_of(turn)
        is_ahead = earliest is not None and turn.now < earliest < turn.next
        self.wanted = cast(int, earliest) if is_ahead else turn.next
        return turn._replace(now=turn.now + int(seconds * 1_000_000), earliest=earliest)

    def leave(self) -> None:
        """Stop taking part until the next :meth:`take`, because the worker ends or is busy."""
        if self._lookout is not None:
            self._lookout.members.discard(self)
        self._lookout = self.wanted = None

    @property
    def slot_us(self) -> int:
        """The distance of the turns in microseconds, set by this process's most frequent worker."""
        members = () if self._lookout is None else self._lookout.members
        return min({self.every_us, *(member.every_us for member in members)})

    def is_first_in_interval(self, turn: Turn) -> bool:
        """Return whether an infrequent worker looks at this turn: it looks at the first one in each of its intervals.

        An interval counts if it has begun since the previous turn, even if this look is late. A worker's first look
        counts too, since a process may end before the next interval begins.
        """
        began = turn.now - turn.now % self.every_us
        return self._came is None or began > min(self._came, turn.now) - self.slot_us

    async def ask(self, make: MakeFlow[Turn]) -> Turn:
        """Ask the store through this worker's own ``perform``."""
        turn: Turn = await self._perform("turn", make)
        return turn


class _Lookout:
    """The workers of one process that look at one store together."""

    def __init__(self) -> None:
        self.members: WeakSet[Turns] = WeakSet()
        self._lock = asyncio.Lock()
        self._taken: dict[str, tuple[int, float]] = {}  # for each kind: the turn, and its time by this process's clock
        self._last: Turn | None = None
        self._last_at = 0.0
        self._unread: WeakSet[Turns] = WeakSet()  # the members that have not seen the last answer yet
        self._without_until = float("-inf")

    async def look(self, member: Turns) -> tuple[Turn, float] | None:
        """Return the last answer that serves this member, and its age; None if the store refuses turns."""
        self.members.add(member)
        async with self._lock:
            if monotonic() < self._without_until:
                return None
            turn, seconds = self._last, monotonic() - self._last_at
            if turn is None or member not in self._unread or member.wanted is None or turn.now < member.wanted:
                turn, seconds = await self._ask(member), 0.0
            self._unread.discard(member)
            return None if turn is None else (turn, seconds)

    async def _ask(self, asking: Turns) -> Turn | None:
        members = {asking, *self.members}
        kind = _kind_of_all({member.kind for member in members})
        every_us = min(member.every_us for member in members)
        relay = next((member for member in members if member.with_events is not None), None)
        reaper = next((member for member in members if member.kind == REAPER), None)
        others = next((member for member in members if member.with_events is None), None)
        reaps = None if others is None else reaper is not None
        asked = relay or reaper or asking
        seen = reaper or others or asking  # the store of a reaper knows how far its walk has come

        def make(mine: int | None) -> Flow[Turn]:
            if asked.with_events is None:
                return cast(TakesTurns, asked.store).turn(kind, mine, every_us, bool(reaps))
            return asked.with_events(kind, mine, every_us, lambda: seen.store.turn_params(reaps))

        mine, due = self._taken.get(kind, (None, 0.0))
        began = monotonic()
        has_come = began >= due
        try:
            turn = await asked.ask(lambda: make(mine))
            if has_come and turn.next == mine and turn.next - turn.now > every_us:
                # The turn is due here, but far ahead by the store's clock, which was set back: no worker would look.
                turn = await asked.ask(lambda: make(None))
        except Exception as error:
            if relay is not None:
                self._part_from(relay)
            if relay is not None and others is not None:
                if asking is not relay:
                    return await self._ask(asking)
                raise
            if not isinstance(error, (SchemaError, StatementRefused, StoreReadOnly)):
                raise
            # The store is not migrated, lacks the privilege, or is a standby.
            self._taken.clear()
            self._last, self._without_until = None, monotonic() + WITHOUT_SECONDS
            return None
        self._last, self._last_at, self._unread = turn, monotonic(), WeakSet(members)
        self._taken[kind] = turn.next, self._last_at + seconds_to_turn(turn)
        if relay is not None and self._last_at - began > SLOW_SECONDS:
            self._part_from(relay)
        return turn

    def _part_from(self, relay: Turns) -> None:
        """Let a relay with a slow or damaged outbox look by itself, until its looks have been quick for a while.

        Only the look that discovers this delays the others.
        """
        self.members.discard(relay)
        relay.apart_until = monotonic() + APART_SECONDS


_LOOKOUTS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, WeakKeyDictionary[Any, _Lookout]]] = WeakKeyDictionary()


def _lookout_of(member: Turns) -> _Lookout:
    """Return a worker's lookout; a second relay on one store has its own, since a statement looks for one relay."""
    lookouts = _LOOKOUTS.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())
    lookout = lookouts.setdefault(member.store, _Lookout())
    if member.with_events is None:
        return lookout
    is_second = any(each.with_events is not None for each in lookout.members if each is not member)
    is_apart = is_second or monotonic() < member.apart_until
    return lookouts.setdefault(member, _Lookout()) if is_apart else lookout


def look_together(store: object, other: object) -> None:
    """Let the workers on these two stores of one database look together. Call this in the loop, before they begin."""
    lookouts = _LOOKOUTS.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())
    lookouts[other] = lookouts.setdefault(store, _Lookout())


def is_due(turn: Turn | None) -> bool:
    """Return whether there may be something to take over or to mark."""
    return turn is None or (turn.earliest is not None and turn.earliest <= turn.now)


def kind_of(kind: str, operations: Iterable[str]) -> str:
    """Return the kind of a worker for some operations only, which does not share turns with workers for others.

    >>> kind_of("completer", ["b", "a"]) == kind_of("completer", ["a", "b"]) != kind_of("completer", ["a"])
    True
    """
    named = "\0".join(sorted(operations)).encode("utf-8", "surrogatepass")
    return f"{kind}:{hashlib.sha256(named).hexdigest()[:16]}"


def _kind_of_all(kinds: set[str]) -> str:
    return kinds.pop() if len(kinds) == 1 else kind_of("all", kinds)


def seconds_to_turn(turn: Turn) -> float:
    """Return the seconds until this worker's next turn."""
    return (turn.next - turn.now) / 1_000_000


def seconds_ahead(turn: Turn) -> float:
    """Return the pause after a look: until this worker's next turn, or an earlier due time."""
    ahead = turn.next - turn.now
    if turn.earliest is not None and turn.now < turn.earliest < turn.next:
        ahead = turn.earliest - turn.now + DUE_LATER_US
    return ahead / 1_000_000
