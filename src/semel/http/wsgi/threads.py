"""Limit the threads of a WSGI server that wait for running duplicates: each waiter holds a thread.

No server says how many threads it has. As many as were at work at the same time are certain, so the waiters are at most
half of those: the others stay for requests that do not wait. A server of one thread has no waiters.
"""

from __future__ import annotations

import threading

from semel.errors import ConfigurationError


class Threads:
    """The threads at work in one application, as a context manager around each request.

    Parameters: ``waiters_max`` where the developer knows better.

    >>> threads = Threads()
    >>> with threads, threads, threads, threads:
    ...     pass
    >>> threads.waiters(), Threads(waiters_max=7).waiters()
    (2, 7)
    """

    def __init__(self, waiters_max: int | None = None) -> None:
        if waiters_max is not None and (type(waiters_max) is not int or waiters_max < 0):
            raise ConfigurationError(f"waiters_max must be a whole number of threads, or None; it is {waiters_max!r}")
        self._waiters_max = waiters_max
        self._lock = threading.Lock()
        self._at_work = 0
        self._most = 0

    def __enter__(self) -> None:
        with self._lock:
            self._at_work += 1
            self._most = max(self._most, self._at_work)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._at_work -= 1

    def waiters(self) -> int:
        """How many may wait at once."""
        return self._most // 2 if self._waiters_max is None else self._waiters_max
