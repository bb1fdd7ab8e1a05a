"""Reset state in a forked child: connections, threads, and the parent's live permits.

The interpreter calls it in the child's only thread, before ``fork`` returns there. A check of the process id in every
call would be too late: if two threads check at the same time, one continues with state that the other is about to
replace.
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from semel.errors import StoreUnavailable

FORKED: Final = (
    "the handler forked this process and returned in it, while its parent is at the same command: the parent's outcome "
    "holds. End the child where its work ends, with os._exit(0), or use multiprocessing or subprocess"
)


class Inherited(Protocol):
    """State that a child process inherits, and must not use as it is."""

    def begin_process(self) -> None:
        """Reset state in a forked child. The parent's connections are left alone, not closed."""


_watched: weakref.WeakSet[Inherited] = weakref.WeakSet()


def begin_in_children(one: Inherited) -> None:
    """Have ``one.begin_process()`` called in every forked child, for as long as ``one`` is alive."""
    _watched.add(one)


def start_thread(work: Callable[[], object], name: str, otherwise: str) -> threading.Thread:
    """Start a daemon thread.

    Raises StoreUnavailable if this process can start no more. Parameters: ``otherwise`` what follows from that.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise StoreUnavailable(
            f"this process can start no more threads, {otherwise}. It is ending, or has reached its limit (ulimit -u, "
            "the container's pids limit): raise that; retry with the same key"
        ) from error
    return thread


_parted: weakref.WeakKeyDictionary[Any, Callable[[Any], int]] = weakref.WeakKeyDictionary()


def part_in_children(line: Any, fileno: Callable[[Any], int]) -> None:
    """Point a connection's socket to nowhere in every forked child.

    As a child unwinds its parent's stack, such as at the end of a ``with`` block, it would otherwise send on the
    parent's connection.

    Parameters: ``line`` lives as long as the connection; ``fileno`` finds its socket (-1, or any error: it is closed).
    """
    _parted[line] = fileno


def _part() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        for line, fileno in list(_parted.items()):
            with suppress(Exception):  # a connection that was closed has no socket
                os.dup2(ours.fileno(), fileno(line), inheritable=False)


_process: object = object()


def this_process() -> object:
    """Return an object that identifies this process: a forked child must not end what its parent began."""
    return _process


def _in_child() -> None:
    global _process
    _process = object()
    if _parted:
        _part()
    for one in list(_watched):
        one.begin_process()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_in_child)
