"""The lines that a long run prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.progress import MANY, PARTS, Progress

ROOT = Path(__file__).resolve().parents[1]


def run(folder: Path, tests: int) -> str:
    (folder / "conftest.py").write_text(
        "from tests.progress import Progress\n\n\n"
        "def pytest_configure(config):\n    config.pluginmanager.register(Progress())\n"
    )
    (folder / "test_it.py").write_text(
        f"import pytest\n\n\n@pytest.mark.parametrize('n', range({tests}))\ndef test_it(n):\n    assert n != 7\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "--tb=no", str(folder)]
    done = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr


def test_a_long_run_prints_lines_and_names_a_failure_at_once(tmp_path: Path) -> None:
    output = run(tmp_path, MANY + 100)
    assert "FAILED test_it.py::test_it[7]" in output.partition("semel: 30 of 600 tests")[0]
    assert output.count(" of 600 tests in ") == PARTS
    assert "1 failed, 599 passed" in output
    assert "...." not in output


def test_a_short_run_prints_what_pytest_prints(tmp_path: Path) -> None:
    output = run(tmp_path, 20)
    assert "semel:" not in output
    assert ".......F......" in output


def test_a_line_shows_the_remaining_time() -> None:
    now = iter([0.0, 0.0, 90.0])
    progress = Progress(lambda: next(now))
    progress._begin(1000)
    progress._ended, progress._failed = 600, 2
    assert progress.line() == "semel: 600 of 1,000 tests in 1:30, 2 failed; about 1:00 to go"
    with pytest.raises(StopIteration):
        next(now)
