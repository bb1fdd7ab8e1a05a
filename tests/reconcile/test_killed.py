"""F-42: a worker that is killed between asking and writing has only asked. Real processes, SIGKILL."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.reconciliation.worker import Round
from tests.engine.shells import MADE
from tests.operations.worlds import Cashier, World, paying
from tests.reconcile.test_reconciling import FOUND, Provider, asking, audit_of, lose, round_of


@pytest.fixture(params=["sqlite-async", "psycopg-async"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(request.param, tmp_path)
    world.prepare()
    yield world
    world.close()


def test_the_question_of_a_killed_worker_is_repeated_by_another(stage: World) -> None:
    stage.clock.set(time.time_ns() // 1000)  # the other process goes by the real clock
    shell, what, provider = stage.shell(), paying("a"), Provider(FOUND)
    lose(shell, what)
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.reconcile.asker", stage.url], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    with worker.stdout:
        assert worker.stdout.readline().startswith("asking ")
        assert round_of(shell, asking(provider)) == Round()  # it is being asked, by a process that lives
        worker.send_signal(signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL
    assert round_of(shell, asking(provider)) == Round()  # not decided yet
    stage.clock.advance(seconds=100)
    assert round_of(shell, asking(provider)) == Round(asked=1, settled=1)
    assert shell.run(what, Cashier()).answer == MADE
    assert len(audit_of(shell, what)) == 1
