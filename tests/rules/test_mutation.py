"""The mutation run that CI can afford: one small file of the rules, changed for real, and the tests that must notice.

The whole takes half an hour (``make mutate``); what it found last is in docs/internals/proof.md.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "mutate.py"


def mutate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_change_of_the_pauses_is_noticed(tmp_path: Path) -> None:
    ended = mutate(
        "core/backoff", "--only-tests", "test_lease.py", "--jobs", "1", "--least", "100", "--into", str(tmp_path)
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    [line] = [line for line in ended.stdout.splitlines() if line.startswith("core/backoff ")]
    _, mutants, killed, survived, *_ = line.split()
    assert int(mutants) == int(killed) >= 25
    assert int(survived) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "no such file of the core: nothing; there are core/decide, core/settle"),
        (["--again"], "need --into: the folder of an earlier run"),
        (["--only-report"], "need --into: the folder of an earlier run"),
    ],
)
def test_what_it_cannot_do_is_reported(arguments: list[str], said: str) -> None:
    ended = mutate(*arguments)
    assert ended.returncode == 2
    assert said in ended.stderr
