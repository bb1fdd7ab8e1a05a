"""Scenarios of commands under faults in two processes: the downstream's calls, the clients' answers, the store's rows.

Each story is one command on the real sync engine over SQLite in its own file. The process meets one fault, at
each of its store calls in turn; another process recovers: a retry at once, the reaper after the lease, a retry again.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Final

from semel.core.identity import record_id
from semel.core.model import Answer, Effects, Record, State
from semel.engine.permit import Permit
from semel.engine.sync_engine import Engine
from semel.errors import CommandError, InProgressError, KeyReusedError, OutcomeUnknownError, StoreError
from semel.policy import Command, Policy
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.url import sqlite_backend
from semel.testing.attempts import bits, scope
from semel.testing.clock import SettableClock
from semel.testing.faults import Crash, Fault, Faults, Kind, When, every_fault, faulty_sqlite

POLICIES: Final = {
    "external": Policy(),
    "idempotent": Policy(effects="idempotent"),
    "atomic": Policy(effects="atomic"),
}
ENDS: Final = ("made", "failed", "refused")
FAULTS: Final = (
    (Kind.TIMEOUT, When.AFTER, True),
    (Kind.CRASH, When.BEFORE, True),
    (Kind.TIMEOUT, When.BEFORE, True),
    (Kind.CRASH, When.AFTER, True),
    (Kind.TIMEOUT, When.BEFORE, False),
)
REFUSED: Final = Answer(409, (), b"out of stock")
_TABLE: Final = "CREATE TABLE effect (run INTEGER)"


class Failed(Exception):
    """The handler's own trouble, after its effect."""


class Untrue(AssertionError):
    """What a story must not tell."""


@dataclass
class Story:
    """One command on one file."""

    effects: str
    ends: str
    path: Path
    clock: SettableClock = field(default_factory=SettableClock)
    calls: list[str] = field(default_factory=list)
    runs: int = 0
    told: list[Answer] = field(default_factory=list)
    crashed: bool = False

    def command(self, request: int = 0) -> Command:
        return Command(scope(), "k", bits("request", request, size=32), "1.tests", POLICIES[self.effects])

    def handler(self, permit: Permit) -> Answer:
        """Its effect, and the end of the first run; later runs end well."""
        self.runs += 1
        ends = self.ends if self.runs == 1 else "made"
        if permit.effects is Effects.ATOMIC:
            permit.connection.execute("INSERT INTO effect VALUES (?)", (self.runs,))
        elif ends != "refused":
            self.calls.append(permit.key_for("charge"))
        if ends == "failed":
            raise Failed
        return REFUSED if ends == "refused" else Answer(201, (), b"run %d" % self.runs)

    def attempt(self, engine: Engine) -> str:
        """Make one attempt as a client; return what it got."""
        try:
            result = engine.run(self.command(), self.handler, wait_seconds=0)
        except (Failed, CommandError, StoreError) as error:
            return type(error).__name__
        self.told.append(result.answer)
        return "answered"

    def first(self, fault: Fault) -> Faults:
        """The process that the fault happens to."""
        faults = Faults(fault)
        faults.rest()
        faulty = faulty_sqlite(str(self.path), self.clock, faults, busy_seconds=0.05)
        engine = Engine(faulty.backend, confirm_seconds=5.0 if fault.once else 0.01)
        try:
            engine.open()
            faults.resume()
            with suppress(Crash):
                self.attempt(engine)
            faults.rest()
            with suppress(Crash):
                engine._upkeep.close()
        finally:
            faulty.bury()
        return faults

    def recover(self) -> None:
        """Another process, and what must be true in it."""
        with closing(
            Engine(sqlite_backend(SqliteDriver(str(self.path), synchronous="OFF", clock=self.clock)))
        ) as engine:
            engine.open()
            self.attempt(engine)
            self.check(engine)
            self.clock.advance(seconds=31)
            engine.perform("lapse", lambda: engine.store.lapse(100))
            told = self.attempt(engine)
            if told == Failed.__name__:
                told = self.attempt(engine)
            _true(told != InProgressError.__name__, "I6: a key stays blocked past its lease")
            self.check(engine)
            row = self.row(engine)
            _true(row is not None, "I6: a command that was asked for left nothing")
            unknown = row is not None and row.state == State.UNKNOWN
            _true((told == OutcomeUnknownError.__name__) == unknown, "I6: what is UNKNOWN is not what clients are told")
            _true(not (unknown and self.effects == "atomic"), "I1: an ATOMIC crash left something behind")
            _true(bool(self.runs) or self.crashed or not unknown, "I6: a command that never ran reads UNKNOWN")

    def row(self, engine: Engine) -> Record | None:
        rows = engine.perform("read", lambda: engine.store.read((record_id(scope(), "k"),)))
        return rows[0]

    def check(self, engine: Engine) -> None:
        """Check for one effect, one answer, and no invented success."""
        row = self.row(engine)
        _true(len(set(self.told)) <= 1, "I2: two clients have two answers")
        effects = self.count()
        _true(effects <= 1, f"{'I4' if self.effects == 'external' else 'I1'}: {effects} effects of one command")
        if self.effects == "atomic":
            done = row is not None and row.state == State.SUCCEEDED
            _true(effects == int(done), "I1: the effect and its record did not commit together")
        if self.told:
            _true(row is not None and row.body == self.told[0].body, "I2: a client has what the store does not hold")
            _true(effects == int(self.told[0] != REFUSED), "I2: a client was told what did not happen")

    def count(self) -> int:
        if self.effects == "atomic":
            with closing(sqlite3.connect(self.path)) as connection:
                return int(connection.execute("SELECT count(*) FROM effect").fetchall()[0][0])
        return len(self.calls) if self.effects == "external" else len(set(self.calls))


def _true(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Untrue(otherwise)


def stories(folder: Path) -> Iterator[tuple[str, int]]:
    """Tell all of them; yields the name and the number of each that was true. Raises Untrue."""
    template = folder / "template.db"
    with closing(Engine(sqlite_backend(SqliteDriver(str(template), synchronous="OFF")))) as engine:
        engine.migrate()
    with closing(sqlite3.connect(template)) as connection, connection:
        connection.execute(_TABLE)
    number = 0
    for effects in POLICIES:
        number += 1
        name = f"{effects}, another request while it runs"
        with _Noting(name, number):
            _another_request_meanwhile(effects, template, folder / f"{number}.db")
        yield name, number
    # Every kind of command meets a kind of fault before the next kind begins: what is wrong in one is found soon.
    for (kind, when, once), ends, effects in product(FAULTS, ENDS, POLICIES):
        for fault in every_fault(kind, when, once=once):
            number += 1
            name = f"{effects}, {ends}, {fault}"
            with _Noting(name, number):
                clean = _one(effects, ends, fault, template, folder / f"{number}.db")
            yield name, number
            if clean:
                break


def _one(effects: str, ends: str, fault: Fault, template: Path, path: Path) -> bool:
    shutil.copyfile(template, path)
    story = Story(effects, ends, path)
    faults = story.first(fault)
    story.crashed = faults.dead
    story.recover()
    path.unlink()
    return faults.clean


def _another_request_meanwhile(effects: str, template: Path, path: Path) -> None:
    """I7, while the handler runs: also for ATOMIC, whose record is not visible yet."""
    shutil.copyfile(template, path)
    story = Story(effects, "made", path)
    met: list[str] = []
    with Engine(sqlite_backend(SqliteDriver(str(path), synchronous="OFF", clock=story.clock))) as engine:

        def handler(permit: Permit) -> Answer:
            try:
                engine.run(story.command(request=1), story.handler, wait_seconds=0)
            except CommandError as error:
                met.append(type(error).__name__)
            return Answer(201, (), b"made")

        engine.run(story.command(), handler)
    _true(met == [KeyReusedError.__name__], f"I7: another request was met with {met}")


class _Noting:
    """Names the story in what it raises."""

    def __init__(self, name: str, number: int) -> None:
        self._note = f"story {number}: {name}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            error.add_note(self._note)
