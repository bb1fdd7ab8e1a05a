"""Scenario scripts of this folder: started by pytest, single-threaded, so that they may fork their workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def run_scenario(module: str, *, timeout: float = 120, **options: Any) -> dict[str, Any]:
    """Run ``tests.processes.<module>`` and the processes it starts to their end; return its report.

    Its workers are killed and stopped at their system calls, among which the coverage tool's own would be counted: they
    are not measured.
    """
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-m", f"tests.processes.{module}", json.dumps(options)],
        cwd=ROOT,
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
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found
