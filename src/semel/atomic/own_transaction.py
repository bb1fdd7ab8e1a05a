"""Calls of the application's code inside a transaction of Semel's, for which that code is given a connection.

An ORM with a connection of its own commits apart from that transaction. The integration of such an ORM registers a
watch, which is entered around each call, and may refuse what the ORM writes meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple

from semel.stores.backend import Backend


class OwnTransaction(NamedTuple):
    """The transaction that a call runs in.

    ``name`` of the operation or the consumer; ``instead`` what to do if the code cannot write on its connection.
    """

    backend: Backend
    name: str
    instead: str


Watch = Callable[[OwnTransaction], AbstractContextManager[None]]
_FIND: Final = "declare effects='idempotent' and let the code find what it has written before"
_NOTHING: Final = nullcontext()
_watches: Final[list[Watch]] = []


def watch(enter: Watch) -> None:
    """Have ``enter`` called for each call of the application's code; its context is around the call."""
    _watches[:] = [enter]


def in_own_transaction(
    backend: Backend, name: str, connection: object, instead: str = _FIND
) -> AbstractContextManager[None]:
    """The context for one call. ``connection`` is what the code is given, or its unit; None: it has no transaction."""
    if connection is None or not _watches:
        return _NOTHING
    return _watches[0](OwnTransaction(backend, name, instead))
