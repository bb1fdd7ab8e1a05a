"""The asks of the engine's own flows: what claiming, waiting and settling need from whoever performs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from semel.core.flow import Ask, Flow, MakeFlow
from semel.core.model import Verdict

R = TypeVar("R")
T = TypeVar("T")


class Unit(Protocol):
    """A transaction that holds a record and the handler's own writes: Semel's own, or the user's, joined."""

    @property
    def connection(self) -> Any:
        """What the handler writes on."""

    def run(self, make: MakeFlow[T]) -> T:
        """Run a store flow inside the transaction."""

    def run_async(self, make: MakeFlow[T]) -> Awaitable[T]:
        """As ``run``, without blocking the loop."""

    def settle(self, needed: Ask[Any], *, commit: bool) -> bool:
        """See :class:`SettleWithin`."""

    def settle_async(self, needed: Ask[Any], *, commit: bool) -> Awaitable[bool]:
        """As ``settle``, without blocking the loop."""

    def hand_out(self) -> Any:
        """Give the connection to the handler: from here on only Semel ends the transaction."""

    def commit(self) -> None:
        """End it well."""

    def commit_async(self) -> Awaitable[None]:
        """As ``commit``, without blocking the loop."""

    def rollback(self) -> None:
        """Undo it."""

    def rollback_async(self) -> Awaitable[None]:
        """As ``rollback``, without blocking the loop."""


class Perform(Ask[T]):
    """Run a store's flow on the driver."""

    __slots__ = ("make", "verb")

    def __init__(self, verb: str, make: MakeFlow[T]) -> None:
        self.verb = verb
        self.make = make


class PerformOne(Perform[list[T]]):
    """One request of a verb that takes many: a performer may send it together with those of other callers."""

    __slots__ = ("many", "request")

    def __init__(self, verb: str, many: Callable[[Sequence[R]], Flow[list[T]]], request: R) -> None:
        super().__init__(verb, lambda: many((request,)))
        self.many = many
        self.request = request


class Begin(Ask[Unit]):
    """Open a unit: BEGIN IMMEDIATE by Semel, on a connection of its own, or as ``join`` does it on the user's."""

    __slots__ = ("join",)

    def __init__(self, join: Callable[[], Any] | None = None) -> None:
        self.join = join


class Within(Ask[T]):
    """Run a store's flow inside a unit."""

    __slots__ = ("make", "unit", "verb")

    def __init__(self, unit: Unit, verb: str, make: MakeFlow[T]) -> None:
        self.unit = unit
        self.verb = verb
        self.make = make


class SettleWithin(Ask[bool]):
    """Settle inside a unit by a store's one ask, and commit with it where Semel owns the transaction.

    False: nothing was settled, and nothing of the transaction will be committed.
    """

    __slots__ = ("commit", "needed", "unit")

    def __init__(self, unit: Unit, needed: Ask[Any], *, commit: bool) -> None:
        self.unit = unit
        self.needed = needed
        self.commit = commit


class Commit(Ask[None]):
    """Commit a unit."""

    __slots__ = ("unit",)

    def __init__(self, unit: Unit) -> None:
        self.unit = unit


class Rollback(Ask[None]):
    """Undo a unit."""

    __slots__ = ("unit",)

    def __init__(self, unit: Unit) -> None:
        self.unit = unit


class Attempt(Ask[Verdict]):
    """The waiting caller's own claim, made once more."""

    __slots__ = ()


class Pause(Ask[None]):
    """Wait so many seconds, or until this process has settled the record of this id."""

    __slots__ = ("id", "seconds")

    def __init__(self, seconds: float, id: bytes | None = None) -> None:
        self.seconds = seconds
        self.id = id


class Elapsed(Ask[float]):
    """A monotonic clock, in seconds."""

    __slots__ = ()


class Jitter(Ask[float]):
    """A random number between 0 and 1."""

    __slots__ = ()
