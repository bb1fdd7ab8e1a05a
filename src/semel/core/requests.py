"""The asks of the engine's own flows: what claiming, waiting and settling need from a driver."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from semel.core.flow import Ask, Flow, MakeFlow
from semel.core.model import Verdict

R = TypeVar("R")
T = TypeVar("T")


class Unit(Protocol):
    """A transaction, in a thread, of a record and the handler's own writes: Semel's own, or the user's, joined.

    Semel's own commits in one of two ways: as :class:`SettlingUnit` if the store declares ``settles_by_proof``,
    else as :class:`CommittingUnit`. The owner of a joined transaction commits it.
    """

    @property
    def connection(self) -> Any:
        """The connection for the handler's writes."""

    def run(self, make: MakeFlow[T]) -> T:
        """Run a store flow inside the transaction."""

    def hand_out(self) -> Any:
        """Give the connection to the handler: from here on only Semel ends the transaction."""

    def rollback(self) -> None:
        """Undo it."""


class SettlingUnit(Unit, Protocol):
    """A unit whose settle itself proves that the claim belongs to the transaction."""

    def settle(self, needed: Ask[Any]) -> bool:
        """See :class:`SettleWithin`."""


class CommittingUnit(Unit, Protocol):
    """A unit that commits after its own settle."""

    def commit(self) -> None:
        """End it well."""


class AsyncUnit(Protocol):
    """As :class:`Unit`, on an event loop."""

    @property
    def connection(self) -> Any:
        """The connection for the handler's writes."""

    def run_async(self, make: MakeFlow[T]) -> Awaitable[T]:
        """Run a store flow inside the transaction."""

    def hand_out(self) -> Any:
        """Give the connection to the handler: from here on only Semel ends the transaction."""

    def rollback_async(self) -> Awaitable[None]:
        """Undo it."""


class AsyncSettlingUnit(AsyncUnit, Protocol):
    """As :class:`SettlingUnit`, on an event loop."""

    def settle_async(self, needed: Ask[Any]) -> Awaitable[bool]:
        """See :class:`SettleWithin`."""


class AsyncCommittingUnit(AsyncUnit, Protocol):
    """As :class:`CommittingUnit`, on an event loop."""

    def commit_async(self) -> Awaitable[None]:
        """End it well."""


# Flows pass units on without inspecting them. A performer only gets units that it has begun itself, so the type of an
# ask's ``unit`` is Any.
AnyUnit = Unit | AsyncUnit
OwnUnit = SettlingUnit | CommittingUnit
AsyncOwnUnit = AsyncSettlingUnit | AsyncCommittingUnit


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


class Begin(Ask[AnyUnit]):
    """Open a unit: BEGIN IMMEDIATE on a separate connection, or joined to the user's."""

    __slots__ = ("join",)

    def __init__(self, join: Callable[[], Any] | None = None) -> None:
        self.join = join


class Within(Ask[T]):
    """Run a store's flow inside a unit."""

    __slots__ = ("make", "unit", "verb")

    def __init__(self, unit: AnyUnit, verb: str, make: MakeFlow[T]) -> None:
        self.unit: Any = unit
        self.verb = verb
        self.make = make


class SettleWithin(Ask[bool]):
    """Settle inside a unit by a store's one ask, and commit with it where Semel owns the transaction.

    Asked of stores that declare ``settles_by_proof``. A joined transaction is committed by its owner.

    False: nothing was settled, and nothing of the transaction will be committed.
    """

    __slots__ = ("needed", "unit")

    def __init__(self, unit: AnyUnit, needed: Ask[Any]) -> None:
        self.unit: Any = unit
        self.needed = needed


class Commit(Ask[None]):
    """Commit a unit of a store that declares no ``settles_by_proof``."""

    __slots__ = ("unit",)

    def __init__(self, unit: AnyUnit) -> None:
        self.unit: Any = unit


class Rollback(Ask[None]):
    """Undo a unit."""

    __slots__ = ("unit",)

    def __init__(self, unit: AnyUnit) -> None:
        self.unit: Any = unit


class Attempt(Ask[Verdict]):
    """Attempt the waiting caller's own claim again."""

    __slots__ = ()


class Pause(Ask[None]):
    """Wait so many seconds."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class PauseToLook(Ask[bool]):
    """Wait for a record that others hold; True if this waiter should look at it now.

    Parameters: ``seconds`` until its next look, if it is this process's polling waiter for the record ``id``;
    ``most`` seconds that it may wait in all; ``waiter`` names it. All waiters look at once when this process has
    settled the record, or when the polling waiter has found an answer.
    """

    __slots__ = ("id", "most", "seconds", "waiter")

    def __init__(self, seconds: float, most: float, id: bytes, waiter: bytes) -> None:
        self.seconds = seconds
        self.most = most
        self.id = id
        self.waiter = waiter


class Elapsed(Ask[float]):
    """A monotonic clock, in seconds."""

    __slots__ = ()


class Jitter(Ask[float]):
    """A random number between 0 and 1."""

    __slots__ = ()
