"""Deadlines: a caller's deadline for every ``send()`` below it, and a time limit for a blocking call."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from semel.errors import ConfigurationError

T = TypeVar("T")
_ENDS: Final[contextvars.ContextVar[float | None]] = contextvars.ContextVar("semel_client_deadline", default=None)


class DeadlineOver(Exception):
    """A call did not end in time."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Limit every ``send()`` in this block to ``seconds``, as a server does with its own caller's deadline.

    In nested blocks the earliest deadline counts. It also applies to tasks and threads that copy this context.

    Raises ConfigurationError if ``seconds`` is not a number.

    >>> with deadline(5):
    ...     left_seconds(20.0) <= 5
    True
    """
    if type(seconds) not in (int, float) or seconds != seconds:
        raise ConfigurationError(f"a deadline is a number of seconds from now; it is {seconds!r}")
    outer = _ENDS.get()
    mine = time.monotonic() + seconds
    token = _ENDS.set(mine if outer is None else min(mine, outer))
    try:
        yield
    finally:
        _ENDS.reset(token)


def left_seconds(own: float) -> float:
    """Return the remaining seconds of the caller's deadline, at most ``own``."""
    ends = _ENDS.get()
    return own if ends is None else min(own, ends - time.monotonic())


def within(seconds: float, call: Callable[[], T]) -> T:
    """Call in a thread, and stop waiting for it after ``seconds``.

    A blocking HTTP client limits each phase (pool, connect, write, every single read), but not their sum: a server
    that sends one byte a second would hold it for ever. An abandoned call ends at one of those limits.

    Raises DeadlineOver, or what the call raised.
    """
    done: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            done.put((context.run(call), None))
        except BaseException as error:  # noqa: BLE001 - it is raised again, in the thread that waits
            done.put((None, error))

    threading.Thread(target=run, name="semel-client-attempt", daemon=True).start()
    try:
        value, error = done.get(timeout=max(seconds, 0.0))
    except Empty:
        raise DeadlineOver from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]
