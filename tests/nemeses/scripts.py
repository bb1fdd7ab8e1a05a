"""Scenarios as processes of their own, as in ``tests/crash``: pytest's own has threads, and must not fork."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def play(module: str, folder: Path, *, seconds: float = 600, **options: Any) -> Any:
    """Run ``tests.nemeses.MODULE`` and the processes it starts to their end in an empty folder; return its report."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.nemeses.{module}", json.dumps({"folder": str(folder), **options})],
        cwd=ROOT,
        # Not measured: forked workers that save what was measured, in front of every kill, are other workers.
        env={name: value for name, value in os.environ.items() if not name.startswith("COV")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"{module} {options} hung:\n{out}\n{err}") from None
    assert process.returncode == 0, f"{module} {options} ended with {process.returncode}:\n{out}\n{err}"
    return json.loads(out.splitlines()[-1])


def read_arguments() -> dict[str, Any]:
    """Return the arguments that the test has given to this script."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    return options


def tell(found: object) -> None:
    """The last line of the script's output."""
    print(json.dumps(found), flush=True)
