"""Simulated schedules as part of a soak: the simulator's own command, a few thousand schedules at a time."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

MODULE: Final = "verification.simulate"
SCHEDULES_AT_ONCE: Final = 5_000


def there() -> bool:
    """Whether this semel has a simulator."""
    return importlib.util.find_spec(MODULE) is not None and importlib.util.find_spec(f"{MODULE}.__main__") is not None


class Chunk:
    """Some schedules, simulated by their own process; ``log`` takes what it prints."""

    def __init__(self, first: int, schedules: int, jobs: int, folder: Path) -> None:
        self.schedules = schedules
        self.log = folder / f"simulation-{first}.log"
        self.started = time.monotonic()
        options = ["--start", str(first), "--seeds", str(schedules), "--jobs", str(jobs), "--quiet"]
        with self.log.open("wb") as out:
            # Our own module and three numbers; a group of its own, with its workers.
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def is_over(self) -> bool:
        """Whether it is over."""
        return self._process.poll() is not None

    def has_held(self) -> bool:
        """Wait for the end; return whether every schedule held. If so, delete the log."""
        if self._process.wait() == 0:
            self.log.unlink(missing_ok=True)
            return True
        return False

    def kill(self) -> None:
        """End it, with its workers, and forget it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.log.unlink(missing_ok=True)
