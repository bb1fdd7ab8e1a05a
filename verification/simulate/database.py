"""The simulated server's data: the real stores, each behind the same three acts: copy, adopt, step.

A *session* performs one flow. Memory: each ask is one step, and others may come in between two of them. SQLite:
each read is, and everything from the first write to the commit, as its driver does it. Where a database holds
ATOMIC units, every flow is one step, since it is one transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Any, Final, Protocol

from semel.core.flow import Ask, Flow, perform
from semel.core.model import Record
from semel.stores.memory import store as memory
from semel.stores.sql.statements import Now
from semel.stores.sqlite import store as sqlite
from semel.stores.sqlite.connection import answering, writes
from semel.testing.clock import SettableClock

Rows = dict[bytes, Record]
Clock = Callable[[], int]


class Session:
    """One flow on its way. ``now`` is the last time that it got."""

    __slots__ = ("_clock", "_needed", "_started", "database", "flow", "now", "reply", "whole")

    def __init__(self, database: Database, flow: Flow[Any], clock: Clock, *, whole: bool) -> None:
        self.database = database
        self.flow = flow
        self.whole = whole
        self.reply: Any = None
        self.now = 0
        self._clock = clock
        self._started = False
        self._needed: Ask[Any] | None = None

    def tell_time(self) -> int:
        """The store's time."""
        self.now = self._clock()
        return self.now

    def step(self) -> bool:
        """Go on to the next point where another flow may run; True if the flow has ended."""
        try:
            if not self._started:
                self._started = True
                self._needed = next(self.flow)
            assert self._needed is not None
            self._needed = self.database.step(self, self._needed)
        except StopIteration as stop:
            self.reply = stop.value
            return True
        return False


class Database(Protocol):
    """What a server holds."""

    store: Any

    def step(self, session: Session, needed: Ask[Any]) -> Ask[Any]:
        """Perform one step of a flow; returns its next ask, or raises StopIteration."""

    def rows(self) -> Rows:
        """Every record as it is now, by id."""

    def copy(self) -> Database:
        """The same data, for a transaction that no other flow sees."""

    def adopt(self, copy: Any) -> None:
        """Commit: make a transaction's data visible to all."""

    def steps(self) -> dict[bytes, bytes]:
        """The recorded steps of every record that has any, packed, by id."""

    def close(self) -> None:
        """Close it: it is not needed any more."""


class MemoryDatabase:
    """The real memory store on a table."""

    def __init__(self, table: memory.Table | None = None) -> None:
        self.store: Any = memory.MemoryStore()
        self._table = table if table is not None else memory.Table()

    def step(self, session: Session, needed: Ask[Any]) -> Ask[Any]:
        while True:
            assert isinstance(needed, memory.TableCall)
            needed = session.flow.send(needed.act(self._table, session.tell_time()))
            if not session.whole:
                return needed

    def rows(self) -> Rows:
        return {row.id: row for row in self.copy()._table.rows()}  # to look at records does not make them

    def copy(self) -> MemoryDatabase:
        mine = self._table
        return MemoryDatabase(
            replace(
                mine,
                records=dict(mine.records),
                by_operation=dict(mine.by_operation),
                seqs=dict(mine.seqs),
                order=list(mine.order),
                running=set(mine.running),
                audits=list(mine.audits),
            )
        )

    def adopt(self, copy: MemoryDatabase) -> None:
        self._table = copy._table

    def steps(self) -> dict[bytes, bytes]:
        return {}

    def close(self) -> None:
        return None


_SELECT: Final = f"SELECT {', '.join(Record._fields)} FROM semel_record ORDER BY seq"
_STEPS: Final = "SELECT id, steps FROM semel_record WHERE steps IS NOT NULL ORDER BY seq"


class SqliteDatabase:
    """The real SQLite store on a database inside this process."""

    def __init__(self, content: bytes | None = None) -> None:
        self.store: Any = sqlite.SqliteStore()
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.deserialize(_migrate() if content is None else content)
        self._seen = -1  # how many rows were changed when it was read last
        self._rows: Rows = {}
        self._steps: dict[bytes, bytes] = {}

    def step(self, session: Session, needed: Ask[Any]) -> Ask[Any]:
        answer = answering(self._connection, session.tell_time)
        if isinstance(needed, Now) and not session.whole:
            needed = session.flow.send(answer(needed))
        if not session.whole and not writes(needed):
            return session.flow.send(answer(needed))
        with self._connection:  # commits, or rolls back what raises; a flow's end is not a failure
            self._connection.execute("BEGIN")
            try:
                while True:
                    needed = session.flow.send(answer(needed))
            except StopIteration as stop:
                end = stop
        raise end

    def rows(self) -> Rows:
        self._read()
        return self._rows

    def copy(self) -> SqliteDatabase:
        return SqliteDatabase(self._connection.serialize())

    def adopt(self, copy: SqliteDatabase) -> None:
        self._connection.deserialize(copy._connection.serialize())
        self._seen = -1

    def steps(self) -> dict[bytes, bytes]:
        self._read()
        return self._steps

    def _read(self) -> None:
        """Read what was written since the last time; what was given out then is left alone."""
        changes = self._connection.total_changes
        if changes != self._seen:
            self._seen = changes
            self._rows = {row[0]: Record._make(row) for row in self._connection.execute(_SELECT)}
            self._steps = dict(self._connection.execute(_STEPS).fetchall())

    def close(self) -> None:
        self._connection.close()


@cache
def _migrate() -> bytes:
    """An empty store, as the bytes of its file: made once, since every schedule begins with one."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        perform(sqlite.SqliteStore().migrate("simulate", b"none"), answering(connection, SettableClock()))
        return connection.serialize()


class AskedStore:
    """A store that notes which verb was asked for, with what: its reader empties ``asked``."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.capabilities = real.capabilities
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self._real, verb)
        if not callable(method):  # what it is, not what it does: such as its dialect
            return method

        def note_and_call(*given: Any) -> Flow[Any]:
            self.asked.append((verb, given))
            flow: Flow[Any] = method(*given)
            return flow

        setattr(self, verb, note_and_call)
        return note_and_call
