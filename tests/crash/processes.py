"""Real processes for the crash tests: scripts started by pytest, which fork the workers of ``verification.soak``.

pytest's own process has threads and must not fork. So each scenario is a script of its own, single-threaded and with no
store open, which forks its workers in a few milliseconds each and tells pytest what happened as one JSON document.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from verification.soak.worker import Line, Worker, pause, ready

__all__ = ["Line", "Worker", "pause", "ready", "report", "run_script"]

ROOT = Path(__file__).resolve().parents[2]


def run_script(module: str, *, timeout: float = 60, **options: Any) -> dict[str, Any]:
    """Run a scenario script and the processes it starts to their end; return its report."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.crash.{module}", json.dumps(options)],
        cwd=ROOT,
        # No scenario script is measured: under the coverage tool, which saves at a child's exit, a scenario that forks
        # out of busy threads hung now and then; without it 18 of 18 repeats ended. Which lock it was is not known.
        env={name: value for name, value in os.environ.items() if not name.startswith("COV")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own, so that a hung scenario leaves no process behind
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"{module} {options} hung:\n{out}\n{err}") from None
    assert process.returncode == 0, f"{module} {options} ended with {process.returncode}:\n{out}\n{err}"
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    return report


def report(found: object) -> None:
    """The last line of a scenario script's output."""
    print(json.dumps(found), flush=True)
