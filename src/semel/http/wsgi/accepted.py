"""Run handlers whose requests were answered with 202: one thread each, a bounded number at once.

Where there is no place the client waits for its answer, as it would without the preference. Where the process dies a
completer takes over. WSGI has no end of an application that could be waited for: Python waits for these threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from semel.stores.process import begin_in_children

AT_ONCE: Final = 10  # as a completer


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

        What it raises goes to :func:`threading.excepthook`: nobody else is listening.
        """
        if not self._places.acquire(blocking=False):
            return False
        thread = threading.Thread(target=self._run, args=(work, self._places), name="semel-accepted")
        self._threads.add(thread)
        with suppress(RuntimeError):  # the interpreter is ending: no thread begins any more
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
