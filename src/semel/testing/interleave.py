"""Every interleaving of a few short programs against one store, from the same start each time.

A *program* is a flow over ``Perform`` (a store call, as in the engine's flows) and ``Act`` (a step of the test's own,
such as moving the clock). No other program can interrupt a step:

- memory: one verb;
- SQLite: one read outside the writer's lock, or everything from a flow's first write to its commit, which
  is how the driver performs it.

    for run in interleavings(SqliteWorld, [claim, late_settle]):
        assert ..., (run.results, run.schedule)
"""

from __future__ import annotations

import atexit
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol, TypeVar

from semel.core.contract import Store
from semel.core.flow import Ask, Flow, MakeFlow, perform
from semel.core.requests import Perform
from semel.stores.memory.store import MemoryStore, Table, TableCall
from semel.stores.sql.statements import Now
from semel.stores.sqlite.connection import Answer, answering, writes
from semel.stores.sqlite.store import SqliteStore
from semel.testing.clock import SettableClock

T = TypeVar("T")
INTERLEAVINGS_MAX: Final = 200_000  # too many to enumerate: make the programs shorter


class World(Protocol):
    """A store that advances flows step by step."""

    store: Store
    clock: SettableClock

    def do(self, make: MakeFlow[T]) -> T:
        """Perform a whole flow at once, before or after the programs."""

    def step(self, flow: Flow[Any], needed: Ask[Any]) -> Ask[Any]:
        """Take one step of a flow from ``needed``; return its new position, or raise StopIteration."""

    def close(self) -> None:
        """Close the store."""


Program = Callable[[World], Flow[Any]]


class Act(Ask[T]):
    """A step of the test's own."""

    __slots__ = ("act",)

    def __init__(self, act: Callable[[], T]) -> None:
        self.act = act


class MemoryWorld:
    """The memory store: every verb is one step."""

    def __init__(self, *, clock: SettableClock | None = None) -> None:
        self.store: Store = MemoryStore()
        self.clock = clock or SettableClock()
        self._table = Table()

    def _answer(self, needed: Ask[Any]) -> Any:
        assert isinstance(needed, TableCall)
        return needed.act(self._table, self.clock())

    def do(self, make: MakeFlow[T]) -> T:
        return perform(make(), self._answer)

    def step(self, flow: Flow[Any], needed: Ask[Any]) -> Ask[Any]:
        return flow.send(self._answer(needed))

    def close(self) -> None:
        return None


class SqliteWorld:
    """The SQLite store: every read is one step, and so is everything from the first write to the commit.

    Reading the clock belongs to the next step, or (``fine``) is a step of its own, after which the time may be stale.
    That multiplies the interleavings.
    """

    def __init__(self, *, fine: bool = False, clock: SettableClock | None = None) -> None:
        self._fine = fine
        self.store: Store = SqliteStore()
        self.clock = clock or SettableClock()
        self._connection = _IDLE.pop() if _IDLE else _connect()
        _empty(self._connection)
        self._answer: Answer = answering(self._connection, self.clock)

    def do(self, make: MakeFlow[T]) -> T:
        with self._connection:
            self._connection.execute("BEGIN")
            return perform(make(), self._answer)

    def step(self, flow: Flow[Any], needed: Ask[Any]) -> Ask[Any]:
        if isinstance(needed, Now):
            needed = flow.send(self._answer(needed))
            if self._fine:
                return needed
        if not writes(needed):
            return flow.send(self._answer(needed))
        with self._connection:  # commits, or rolls back on an exception; the end of a flow is not a failure
            self._connection.execute("BEGIN")
            try:
                while True:
                    needed = flow.send(self._answer(needed))
            except StopIteration as stop:
                end = stop
        raise end

    def close(self) -> None:
        _IDLE.append(self._connection)


# Migrated in-memory stores that no world uses. Every run begins with an empty one; on a new connection SQLite
# would compile each statement again, which is most of a run's cost.
_IDLE: Final[list[sqlite3.Connection]] = []


def _connect() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    perform(SqliteStore().migrate("interleave", b"none"), answering(connection, SettableClock()))
    atexit.register(connection.close)
    return connection


def _empty(connection: sqlite3.Connection) -> None:
    """Reset a store to the rows of a new migration."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    connection.execute("BEGIN")
    for statement, rows in _emptying():
        connection.executemany(statement, rows) if rows else connection.execute(statement)
    connection.execute("COMMIT")


@cache
def _emptying() -> list[tuple[str, list[Any]]]:
    """Return the statements that reset a store to its new state, with the rows that they insert."""
    statements: list[tuple[str, list[Any]]] = []
    connection = _connect()
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        statements.append((f"DELETE FROM {table}", []))  # noqa: S608 - names of ours
        if rows := connection.execute(f"SELECT * FROM {table}").fetchall():  # noqa: S608
            statements.append((f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows))  # noqa: S608
    _IDLE.append(connection)
    return statements


class _Actor:
    """One running program."""

    def __init__(self, world: World, program: Program) -> None:
        self._world = world
        self._program = program(world)
        self._inner: Flow[Any] | None = None
        self._at: Ask[Any] | None = None
        self.done = False
        self.result: Any = None
        self._continue(None, first=True)

    def _continue(self, reply: Any, *, first: bool = False) -> None:
        """Advance the program to its next step, without taking it."""
        try:
            needed = next(self._program) if first else self._program.send(reply)
        except StopIteration as stop:
            self.done, self.result = True, stop.value
            return
        self._inner = None
        self._at = needed
        if isinstance(needed, Perform):
            self._inner = needed.make()
            self._at = next(self._inner)

    def step(self) -> None:
        assert self._at is not None
        if self._inner is None:
            assert isinstance(self._at, Act)
            self._continue(self._at.act())
            return
        try:
            self._at = self._world.step(self._inner, self._at)
        except StopIteration as stop:
            self._continue(stop.value)


@dataclass(frozen=True, slots=True)
class Run:
    """One interleaving: the order of moves, each program's result, and the final state."""

    schedule: tuple[int, ...]
    results: tuple[Any, ...]
    world: World


def interleavings(make: Callable[[], World], programs: Sequence[Program]) -> Iterator[Run]:
    """Run the programs in every order that their steps can take, each time in a new world.

    The world of a run is closed when the next one begins.
    """
    schedule: list[int] = []
    for _ in range(INTERLEAVINGS_MAX):
        world = make()
        try:
            actors = [_Actor(world, program) for program in programs]
            ready: list[list[int]] = []  # the programs that could have moved at each place
            while could := [n for n, actor in enumerate(actors) if not actor.done]:
                at = len(ready)
                ready.append(could)
                if at == len(schedule):
                    schedule.append(could[0])
                actors[schedule[at]].step()
            yield Run(tuple(schedule), tuple(actor.result for actor in actors), world)
        finally:
            world.close()
        # The next schedule in order: at the last place where a later program could move, it moves.
        while schedule and schedule[-1] == ready[len(schedule) - 1][-1]:
            schedule.pop()
        if not schedule:
            return
        could = ready[len(schedule) - 1]
        schedule[-1] = could[could.index(schedule[-1]) + 1]
    raise AssertionError(f"more than {INTERLEAVINGS_MAX} interleavings: make the programs shorter")
