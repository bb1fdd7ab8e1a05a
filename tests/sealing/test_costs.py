"""What sealing costs, and that nothing is paid for it where nothing is sealed. 1 s."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import sealing
from semel.engine import state
from semel.sealing import rebuild
from tests.engine.drivers import memory
from tests.engine.shells import MADE, Shell
from tests.sealing.conftest import command


def test_an_answer_of_a_kibibyte_is_sealed_in_microseconds() -> None:
    """The goal is 10 µs each; on a machine that does other work at the same time, the fastest round may take longer."""
    seal, open_ = sealing.measure(1024, rounds=20, calls=50)
    assert seal < 5 * sealing.GOAL_US
    assert open_ < 5 * sealing.GOAL_US


def test_an_operation_without_sealing_calls_no_sealing_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("nothing is sealed here")

    for module, name in ((state, "cover"), (rebuild, "reveal"), (state, "check_sealer")):
        monkeypatch.setattr(module, name, refuse)
    process = Shell("sync", memory())
    process.open()
    assert process.run(command(), lambda permit: MADE).answer == MADE
    assert process.run(command(), lambda permit: MADE).replayed
    process.close()
