"""Simulated schedules as part of a soak: the simulator's own command, a few thousand schedules at a time."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Final

MODULE: Final = "semel.testing.simulate"
SCHEDULES_AT_ONCE: Final = 5_000


def there() -> bool:
    """Whether this semel has a simulator."""
    return importlib.util.find_spec(MODULE) is not None and importlib.util.find_spec(f"{MODULE}.__main__") is not None


def simulating(seed: int, schedules: int, folder: Path) -> tuple[list[str], Path]:
    """The command line of one chunk, and the file that takes what it prints."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", MODULE, "--seed", str(seed), "--schedules", str(schedules)]
    return command, folder / f"simulation-{seed}.log"


def start(seed: int, schedules: int, folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Begin a chunk; its exit code 0 says that no schedule broke a promise."""
    command, log = simulating(seed, schedules, folder)
    with log.open("wb") as out:
        # Our own module and two numbers.
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL), log  # noqa: S603
