"""SQLite and ``fork``: prevent a child process from using inherited connections.

SQLite notes in memory which locks its process holds, per file. A child inherits the note but not the
locks: a connection it opens beside an inherited one takes no lock of its own, so that the parent may delete
the write-ahead log under it, answers and all; and a lock that the parent held stays held in the child for ever.
So the parent's idle connections are closed before a fork, and a child whose parent still had the file open
(an ATOMIC unit, a long read, the application's own connection) refuses to open it at all. Semel's threads are kept out
of SQLite during the fork: what one of them had locked in memory would stay locked in the child, for any use of SQLite.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Final, Protocol

from semel.errors import StoreUnavailable

GATE_SECONDS: Final = 0.25  # how long a fork waits for a group commit to end
_OPEN_FILES: Final = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"


class Forking(Protocol):
    """A driver that is notified of forks."""

    path: str

    def before_fork(self) -> bool:
        """Close idle connections and pause; returns whether none was in use."""

    def after_fork(self) -> None:
        """Resume in the parent."""

    def begin_process(self) -> None:
        """Start in the child with nothing open."""


_watched: weakref.WeakSet[Forking] = weakref.WeakSet()
_held: list[Forking] = []
_open_across: list[Forking] = []  # the drivers that could not close everything
_inherited: set[tuple[int, int]] = set()  # device and inode of the files that this process must not open


def watch(driver: Forking) -> None:
    """Tell this driver of every fork of its process."""
    if not _watched:
        _register()
    _watched.add(driver)


_registered: list[bool] = []


def _register() -> None:
    if not _registered:
        _registered.append(True)
        os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


def _before() -> None:
    for driver in list(_watched):
        (_held if driver.before_fork() else _open_across).append(driver)


def _in_parent() -> None:
    for driver in _held:
        driver.after_fork()
    _held.clear()
    _open_across.clear()


def _in_child() -> None:
    still_open = _open_files()
    for driver in list(_watched):
        known = _known_identity(driver.path)
        if known is not None and (driver in _open_across if still_open is None else known in still_open):
            _inherited.add(known)
        driver.begin_process()
    _held.clear()
    _open_across.clear()


def _open_files() -> set[tuple[int, int]] | None:
    """Return every file that this process has open; None where the system cannot tell."""
    try:
        names = os.listdir(_OPEN_FILES)
    except OSError:
        return None
    found = set()
    for name in names:
        try:
            status = os.fstat(int(name))
        except OSError:
            continue  # the listing's own descriptor
        found.add((status.st_dev, status.st_ino))
    return found


def file_identity(path: str) -> tuple[int, int] | None:
    """Return which file a path names now; None where there is none.

    Raises OSError where the file system cannot tell.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def _known_identity(path: str) -> tuple[int, int] | None:
    try:
        return file_identity(path)
    except OSError:
        return None


def refuse_inherited(path: str) -> None:
    """Raise StoreUnavailable where this process was forked while its parent had the file open."""
    if _inherited and _known_identity(path) in _inherited:
        raise StoreUnavailable(
            f"this process was forked while {path!r} was open in its parent, and SQLite's locks do not cross a fork; "
            "open the file only after the fork, or fork while no command is running"
        )
