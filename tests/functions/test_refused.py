"""A handler without statuses says itself that its answer is a definite refusal."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from semel import Answer, Permit, Policy, State
from semel.core.model import Effects
from semel.core.outcomes import Refused
from tests.engine.drivers import memory, sqlite
from tests.engine.shells import Mode, Shell, command

DECLINED = Answer(None, (), b"declined")


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("effects", ["external", "idempotent"])
def test_a_refusal_without_a_status_is_kept_and_replayed(mode: Mode, effects: str) -> None:
    shell = Shell(mode, memory())
    shell.open()
    what = command(policy=Policy.of(effects=effects))

    def refuses(permit: Permit) -> Answer:
        return Refused(DECLINED)  # type: ignore[return-value]  # the shell's own annotation says less

    assert [shell.run(what, refuses).answer, shell.run(what, refuses).replayed] == [DECLINED, True]
    row = shell.row(what)
    assert row is not None
    assert row.state == State.FAILED_REPLAYABLE
    shell.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_atomic_refusal_rolls_back_and_is_kept(mode: Mode, tmp_path: Path) -> None:
    shell = Shell(mode, sqlite(tmp_path / "semel.db"))
    shell.open()
    with sqlite3.connect(tmp_path / "semel.db") as db:
        db.execute("CREATE TABLE effect (n INTEGER)")
    db.close()
    what = command(policy=Policy(effects=Effects.ATOMIC))

    def refuses(permit: Permit) -> Answer:
        permit.connection.execute("INSERT INTO effect VALUES (1)")
        return Refused(DECLINED)  # type: ignore[return-value]  # the shell's own annotation says less

    assert [shell.run(what, refuses).answer, shell.run(what, refuses).answer] == [DECLINED, DECLINED]
    shell.close()
    with sqlite3.connect(tmp_path / "semel.db") as db:
        assert db.execute("SELECT count(*) FROM effect").fetchone() == (0,)
    db.close()
