"""Every command under every fault: fail, time out or die before and after each ask, once and from then on.

Then a new process recovers on the same file, and the invariants of docs/guarantees.md are checked against what the
downstream saw. The loop over n ends at the first run that did not come as far.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from semel import Answer, Command, Permit, Policy
from semel.core.model import Effects, State
from semel.errors import CommandError, InProgressError, OutcomeUnknownError, StoreError
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.url import sqlite_backend
from semel.testing.clock import SettableClock
from semel.testing.faults import KINDS, Crash, Fault, Faults, Kind, When, every_fault, faulty_sqlite
from tests.engine.shells import Ledger, Mode, Shell, command

POLICIES = {
    "external": Policy(),
    "idempotent": Policy(effects="idempotent"),
    "atomic": Policy(effects="atomic"),
}
TABLE = "CREATE TABLE effect (run INTEGER)"
REFUSED = Answer(409, (), b"out of stock")
ASKS = {  # what a run without faults asks of SQLite: a promise of its cost, too
    ("external", "made"): 10,
    ("idempotent", "made"): 10,
    ("atomic", "made"): 9,
}


class Failed(Exception):
    """The handler's own trouble, after its effect."""


class Story:
    """One command in two processes on one file."""

    def __init__(self, mode: Mode, policy: Policy, ends: str, path: Path) -> None:
        self.mode, self.policy, self.ends, self.path = mode, policy, ends, str(path)
        self.clock = SettableClock()
        self.ledger = Ledger()
        self.runs = 0
        self.acknowledged: list[Answer] = []

    @property
    def command(self) -> Command:
        return command(policy=self.policy)

    def handler(self, permit: Permit) -> Answer:
        """Its effect, and the end of the first run; later runs end well."""
        self.runs += 1
        ends = self.ends if self.runs == 1 else "made"
        if permit.effects is Effects.ATOMIC:
            permit.connection.execute("INSERT INTO effect VALUES (?)", (self.runs,))
        elif ends != "refused":
            self.ledger.charge(permit.key_for("charge"))
        if ends == "failed":
            raise Failed
        return REFUSED if ends == "refused" else Answer(201, (), b"run %d" % self.runs)

    def first(self, fault: Fault) -> Faults:
        """The process that the fault happens to."""
        faults = Faults(fault)
        faults.rest()
        faulty = faulty_sqlite(self.path, self.clock, faults)
        shell = Shell(self.mode, faulty.backend, confirm_seconds=5.0 if fault.once else 0.01)
        try:
            shell.open()
            faults.resume()
            self.attempt(shell)
        except Crash:
            pass
        finally:
            shell.abandon()
            faulty.bury()
        return faults

    def attempt(self, shell: Shell) -> str:
        """Make one attempt as a client; return its answer."""
        try:
            result = shell.run(self.command, self.handler)
        except (Failed, CommandError, StoreError) as error:
            return type(error).__name__
        self.acknowledged.append(result.answer)
        return "answered"

    def recover(self) -> None:
        """Another process: a retry at once, one after the lease, and the reaper in between."""
        shell = Shell(self.mode, sqlite_backend(SqliteDriver(self.path, synchronous="OFF", clock=self.clock)))
        try:
            shell.open()
            self.attempt(shell)
            self.check(shell)
            self.clock.advance(seconds=31)
            shell.reap()
            told = self.attempt(shell)
            if told == Failed.__name__:  # its first run of all: a retry must get further
                told = self.attempt(shell)
            assert told != InProgressError.__name__  # I6: nothing is stuck past its lease
            self.check(shell)
            row = shell.row(self.command)
            assert row is not None
            assert row.state in (State.SUCCEEDED, State.FAILED_REPLAYABLE, State.UNKNOWN)
            assert (told == OutcomeUnknownError.__name__) == (row.state == State.UNKNOWN)
        finally:
            shell.close()

    def check(self, shell: Shell) -> None:
        """I1, I2, I4, and no invented success."""
        row = shell.row(self.command)
        assert len(set(self.acknowledged)) <= 1  # I2
        if self.policy.effects is Effects.ATOMIC:
            with closing(sqlite3.connect(self.path)) as connection:
                [[effects]] = connection.execute("SELECT count(*) FROM effect").fetchall()
            assert effects == (1 if row is not None and row.state == State.SUCCEEDED else 0)  # I1, both ways
        elif self.policy.effects is Effects.EXTERNAL:
            effects = len(self.ledger.calls)
            assert effects <= 1  # I4: nothing was settled here as "did not happen" after its effect
        else:
            effects = self.ledger.effects
            assert effects <= 1  # the downstream deduplicates, by a key that survives everything
        if self.acknowledged:
            assert row is not None
            assert row.body == self.acknowledged[0].body  # what left is what the store holds
            assert effects == (0 if self.acknowledged[0] == REFUSED else 1)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file with the handlers' own table, copied for every run."""
    path = tmp_path_factory.mktemp("template") / "semel.db"
    shell = Shell("sync", sqlite_backend(SqliteDriver(str(path), synchronous="OFF")))
    shell.open()
    shell.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(TABLE)
    return path


@pytest.mark.parametrize(("kind", "when", "once"), KINDS, ids=lambda value: str(getattr(value, "value", value)))
@pytest.mark.parametrize("ends", ["made", "refused", "failed"])
@pytest.mark.parametrize("effects", POLICIES)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_command_recovers_from_each_fault(
    mode: Mode, effects: str, ends: str, kind: Kind, when: When, once: bool, template: Path, tmp_path: Path
) -> None:
    for fault in every_fault(kind, when, once=once):
        path = tmp_path / f"{fault.n}.db"
        shutil.copyfile(template, path)
        story = Story(mode, POLICIES[effects], ends, path)
        faults = story.first(fault)
        try:
            story.recover()
        except AssertionError as error:
            error.add_note(f"{fault}: {faults.asks}")
            raise
        if faults.clean:
            assert len(faults.asks) == ASKS.get((effects, ends), len(faults.asks)), faults.asks
            assert fault.n == len(faults.asks) + 1
            return


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("effects", POLICIES)
def test_a_process_that_dies_between_claim_and_settle(mode: Mode, effects: str, template: Path, tmp_path: Path) -> None:
    """In the handler itself, right after its effect: the ask that never came."""
    path = tmp_path / "semel.db"
    shutil.copyfile(template, path)
    story = Story(mode, POLICIES[effects], "made", path)
    faults = Faults()
    faulty = faulty_sqlite(str(path), story.clock, faults)
    shell = Shell(mode, faulty.backend)
    shell.open()
    permit = shell.permit(story.command)
    story.handler(permit)
    shell.abandon()
    faulty.bury()
    story.recover()
    told = {"external": 1, "idempotent": 2, "atomic": 2}[effects]
    assert story.runs == told
