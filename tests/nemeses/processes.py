"""The processes of a server: found by their own ids, killed as the kernel or an operator would."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes that this one has started and that live."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(stat.parent.name))
    return found


def end(pids: Iterable[int], how: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to each, and wait until all are gone."""
    waited = []
    for pid in pids:
        with suppress(ProcessLookupError):
            waited.append(os.pidfd_open(pid))
            signal.pidfd_send_signal(waited[-1], how)
    for process in waited:
        select.select([process], [], [], 30)
        os.close(process)


def await_end(pid: int, seconds: float = 30.0) -> bool:
    """Wait until this process has ended; whether it has."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], seconds)[0])
    finally:
        os.close(process)


def server_of(guard: int) -> int:
    """The one process that a guard guards."""
    (pid,) = children(guard)
    return pid


def crash(guard: int, how: signal.Signals = signal.SIGKILL) -> None:
    """End a server that cannot prepare for it, with all that it has started; its guard ends after it.

    The guard is not killed: a server without a waiting parent keeps its process id, and PostgreSQL refuses to start
    beside a lock file that names an id in use.
    """
    main = server_of(guard)
    family = [main, *children(main)]
    watched = os.pidfd_open(guard)
    end(family[:1] if how != signal.SIGKILL else family, how)
    end(family)
    select.select([watched], [], [], 30)
    os.close(watched)
