"""Flows: store operations that describe what they need instead of doing it.

A flow is a generator that yields *asks* and is sent the replies. A driver runs it, sync or async,
on Semel's own connection or on the user's. Because every IO is one yielded ask, a test driver can
fail or crash before or after ask *n*, for every *n*.

Flows hold no ``try/finally`` around asks: a driver may drop a flow at any ask.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class Ask(Generic[R_co]):
    """A request of a flow to its driver; ``R_co`` is the type of the reply."""

    __slots__ = ()


Flow = Generator[Ask[Any], Any, T]
MakeFlow = Callable[[], Flow[T]]


def ask(needed: Ask[T]) -> Flow[T]:
    """Yield one ask and return its reply, typed: ``row = yield from ask(Query(...))``."""
    reply: T = yield needed
    return reply


def perform(flow: Flow[T], answer: Callable[[Ask[Any]], Any]) -> T:
    """Run a flow to its end with a function that answers each ask.

    >>> class Number(Ask[int]): ...
    >>> def twice() -> Flow[int]:
    ...     return 2 * (yield from ask(Number()))
    >>> perform(twice(), lambda needed: 21)
    42
    """
    try:
        needed = next(flow)
        while True:
            needed = flow.send(answer(needed))
    except StopIteration as stop:
        result: T = stop.value
        return result
