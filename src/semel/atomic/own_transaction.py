"""Calls of the application's code inside one of Semel's transactions, whose connection the code gets.

An ORM with a connection of its own commits apart from that transaction. The integration of such an ORM registers a
watch, which is entered around each call and may refuse the ORM's writes meanwhile.
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
    """Register ``enter``, whose context is entered around each call of the application's code."""
    _watches[:] = [enter]


def in_own_transaction(
    backend: Backend, name: str, connection: object, instead: str = _FIND
) -> AbstractContextManager[None]:
    """Return the context for one call. ``connection`` is the code's connection or unit; None: it has no transaction."""
    if connection is None or not _watches:
        return _NOTHING
    return _watches[0](OwnTransaction(backend, name, instead))
