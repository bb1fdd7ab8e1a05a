"""Reset state in a forked child: connections, threads, and the parent's live permits.

Told by the interpreter, in the child's only thread and before ``fork`` returns there. A look at the process id in every
call would be too late: of two threads that look at the same time, one goes on with what the other is
about to replace.
"""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol

FORKED: Final = (
    "the handler forked this process and returned in it, while its parent is at the same command: the parent's outcome "
    "holds. End the child where its work ends, with os._exit(0), or use multiprocessing or subprocess"
)


class Inherited(Protocol):
    """Something that a child of its process inherits, and must not use as it is."""

    def begin_process(self) -> None:
        """Reset state in a forked child. The parent's connections are left alone, not closed."""


_watched: weakref.WeakSet[Inherited] = weakref.WeakSet()


def begin_in_children(one: Inherited) -> None:
    """Have ``one.begin_process()`` called in every forked child, for as long as ``one`` is alive."""
    _watched.add(one)


_process: object = object()


def this_process() -> object:
    """What tells this process from the one that it was forked from: what it began is not this one's to end."""
    return _process


def _in_child() -> None:
    global _process
    _process = object()
    for one in list(_watched):
        one.begin_process()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_in_child)
