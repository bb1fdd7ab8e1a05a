"""What a figure was measured on: without it a figure means nothing. Names no host, no user and no path."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

LIBRARIES: Final = ("starlette", "uvicorn", "uvloop", "httptools", "orjson")


def describe(folder: Path) -> dict[str, str]:
    """The machine, the versions and the load; ``folder`` is where the database files are written."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "machine": f"{processors} cores ({_processor()}), {_memory()}, database files on {file_system(folder)}",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}, SQLite {sqlite3.sqlite_version}",
        "libraries": ", ".join(f"{name} {version(name)}" for name in LIBRARIES),
        "semel": f"{version('semel')} ({_revision()})",
    }


def command_line(module: str, given: Sequence[str]) -> str:
    """Return the command that reproduces the run, without the passwords of store URLs.

    >>> command_line("bench", ["--url", "redis://shop:secret@db/0"])
    'python -m bench --url redis://shop:...@db/0'
    """
    return re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1:...@", shlex.join(["python", "-m", module, *given]))


def load_average() -> str:
    """How busy the machine is: other work moves absolute figures, and less so ratios."""
    try:
        return f"{os.getloadavg()[0]:.1f}"
    except (AttributeError, OSError):
        return "-"


def file_system(folder: Path) -> str:
    """The kind of file system: on one in memory, a commit would cost no disk."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text("utf-8").splitlines()]
    except OSError:
        return "an unknown file system"
    inside = [(len(place), kind) for place, kind in mounts if folder.resolve().is_relative_to(place)]
    kind = max(inside, default=(0, "an unknown file system"))[1]
    return f"{kind} (in memory: commits cost no disk here)" if kind in ("tmpfs", "ramfs") else kind


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (AttributeError, ValueError, OSError):
        return "memory unknown"


def _revision() -> str:
    git = shutil.which("git")
    if git is None:
        return "revision unknown"
    command = [git, "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=, with changes"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "revision unknown"
