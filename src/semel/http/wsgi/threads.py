"""The threads of a WSGI application: how many may wait for running duplicates, and those of accepted handlers.

No server tells how many threads it has. It has at least as many as were busy at once, so at most half of those may
wait: the others stay free for requests that do not wait. A server of one thread has no waiters.

Handlers whose clients got a 202 run in threads of the process that accepted them, a bounded number at once. If no
thread is free, the client waits for its answer, as it would without the preference. If the process dies, a
completer takes over. WSGI has no shutdown event of an application: Python itself waits for these threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from semel.errors import ConfigurationError
from semel.stores.process import begin_in_children


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
        self._most = 0
        self.begin_process()
        begin_in_children(self)

    def begin_process(self) -> None:
        """Start with no thread at work: at construction, and in a forked child."""
        self._lock = threading.Lock()
        self._at_work = 0

    def __enter__(self) -> None:
        with self._lock:
            self._at_work += 1
            self._most = max(self._most, self._at_work)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._at_work -= 1

    def waiters(self) -> int:
        """Return how many threads may wait at once."""
        return self._most // 2 if self._waiters_max is None else self._waiters_max


AT_ONCE: Final = 10  # a completer's limit


class Accepted:
    """The accepted handlers of one application in one process."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self.begin_process()
        begin_in_children(self)

    def begin_process(self) -> None:
        """Start with none: at construction, and in a forked child."""
        self._places = threading.Semaphore(self._at_once)
        self._threads: set[threading.Thread] = set()

    def begin(self, work: Callable[[], None]) -> bool:
        """Run ``work`` in a separate thread; False if there is no free one, and nothing runs.

        Its exceptions go to :func:`threading.excepthook`: nothing else would report them.
        """
        if not self._places.acquire(blocking=False):
            return False
        thread = threading.Thread(target=self._run, args=(work, self._places), name="semel-accepted")
        self._threads.add(thread)
        with suppress(RuntimeError):  # the interpreter is shutting down: no thread can start
            thread.start()
            return True
        self._threads.discard(thread)
        self._places.release()
        return False

    def _run(self, work: Callable[[], None], places: threading.Semaphore) -> None:
        try:
            work()
        finally:
            self._threads.discard(threading.current_thread())
            places.release()

    def close(self) -> None:
        """Wait for the handlers that are under way."""
        for thread in tuple(self._threads):
            thread.join()
