"""A store that fails, goes silent or dies at every single thing that a run with steps asks of it (SQLite)."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from semel import Answer, Engine, Permit
from semel.core.model import State
from semel.errors import OutcomeUnknownError, SemelError, StepInDoubt
from semel.testing.clock import SettableClock
from semel.testing.faults import KINDS, Crash, Fault, Faults, Kind, When, every_fault, faulty_sqlite
from tests.engine.drivers import sqlite
from tests.steps.conftest import step_command

OK = Answer(201, (), b"done")
LEASE_US = 30_000_000


class Downstream:
    """Remembers every call, by the key that it deduplicates on."""

    def __init__(self) -> None:
        self.charges = 0
        self.mails: list[str] = []


def handler(downstream: Downstream) -> Callable[[Permit], Answer]:
    def charge() -> str:
        downstream.charges += 1
        return "ch_1"

    def insert(connection: sqlite3.Connection) -> int:
        return connection.execute("INSERT INTO effect VALUES (1)").rowcount

    def handle(permit: Permit) -> Answer:
        permit.step("charge", charge)
        permit.local_step("write", insert)
        permit.step("mail", lambda: downstream.mails.append(permit.key_for("mail")), repeat=True)
        return OK

    return handle


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("steps") / "template.db"
    with closing(Engine(sqlite(path))) as engine:
        engine.migrate()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE effect (n INTEGER)")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.commit()
    return path


def first_run(path: Path, clock: SettableClock, fault: Fault, downstream: Downstream) -> bool:
    """Run one process under a fault; return whether the run reached it."""
    faults = Faults(fault)
    faults.rest()
    faulty = faulty_sqlite(str(path), clock, faults)
    engine = Engine(faulty.backend, confirm_seconds=0)
    engine.open()
    faults.resume()
    with suppress(SemelError, sqlite3.Error, Crash):
        engine.run(step_command(), handler(downstream))
    struck = not faults.clean
    if faults.dead:
        faulty.bury(engine)
    else:
        faults.rest()
        engine.close()
    return struck


@pytest.mark.parametrize(("kind", "when", "once"), KINDS, ids=lambda value: str(getattr(value, "value", value)))
def test_a_fault_at_every_ask(kind: Kind, when: When, once: bool, template: Path, tmp_path: Path) -> None:
    for fault in every_fault(kind, when, once=once):
        path = tmp_path / f"{fault.n}.db"
        shutil.copy(template, path)
        clock, downstream = SettableClock(), Downstream()
        struck = first_run(path, clock, fault, downstream)
        clock.advance(LEASE_US + 1)
        with closing(Engine(sqlite(path, clock))) as engine:
            try:
                ended = engine.run(step_command(), handler(downstream)).answer.body.decode()
            except (OutcomeUnknownError, StepInDoubt):
                _ = engine.perform("lapse", lambda: engine.store.lapse(10))  # the reaper's round
                [row] = engine.perform("read", lambda: engine.store.read((engine.core.attempt(step_command()).id,)))
                assert row is not None
                ended = f"{State(row.state).name} {row.doubt}"
        with closing(sqlite3.connect(path)) as db:
            [[rows]] = db.execute("SELECT count(*) FROM effect").fetchall()
        assert downstream.charges <= 1, fault
        assert len(set(downstream.mails)) <= 1, fault
        assert rows <= 1, fault
        if ended == "done":
            assert (downstream.charges, rows, len(set(downstream.mails))) == (1, 1, 1), fault
        else:
            assert ended in ("UNKNOWN step:charge", "UNKNOWN step:write"), fault
        if not struck:
            return
