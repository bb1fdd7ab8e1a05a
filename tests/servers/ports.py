"""Ports for servers: each is given once, and none is the local end of a connection.

A port that was free a moment ago may be gone when its server binds it, or starts on it again after a crash: another
test has found it too, or the system has made it the near end of some connection. So ports come from below the system's
range for those, and each is locked for as long as the process that asked for it lives.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import Final

FIRST, LAST = 20_000, 31_999  # the system's own range begins at 32768, unless it was changed
TRIES: Final = 1000
_held: list[int] = []  # open files: what locks a port until this process ends


def free_port() -> int:
    """A free port of this machine, which no other call gets while this process lives."""
    folder = Path(tempfile.gettempdir()) / f"semel-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for _ in range(TRIES):
        port = random.randint(FIRST, LAST)  # processes which begin together do not queue up
        if _lock(folder / str(port)) and _binds(port):
            return port
    raise AssertionError(f"no port from {FIRST} to {LAST} is free")


def _lock(file: Path) -> bool:
    held = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        return False
    _held.append(held)
    return True


def _binds(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
