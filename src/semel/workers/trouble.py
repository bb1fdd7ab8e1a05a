"""Unexpected errors in background loops that must continue: reaper, relay, reconcilers, completer, renewal."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

REST_SECONDS_FIRST: Final = 0.5
REST_SECONDS_MAX: Final = 30.0


class Trouble:
    """Logs an unexpected error once until its loop works again, and computes the pause before the next look.

    Parameters: ``what`` the loop's name for people.

    >>> trouble = Trouble("the reaper")
    >>> [trouble.note_error(KeyError("x"), log=False) for _ in range(8)]
    [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    >>> trouble.over()
    >>> trouble.note_error(KeyError("x"), log=False)
    0.5
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._logged: set[str] = set()  # the errors that were logged since the loop last worked
        self.errors = 0  # failures in a row

    def note_error(self, error: Exception, *, log: bool = True) -> float:
        """Note an error; return the seconds to rest."""
        self.errors += 1
        kind = f"{type(error).__name__}: {error}"
        if log and kind not in self._logged and len(self._logged) < 100:
            self._logged.add(kind)
            import logging  # imported late: a healthy process never needs it

            with suppress(Exception):  # a log handler that raises must not stop the loop
                logging.getLogger("semel").error(
                    "%s met an unexpected %s and continues after a rest; the same error is not logged again until it "
                    "works",
                    self._what,
                    type(error).__name__,
                    exc_info=error,
                )
        return min(REST_SECONDS_MAX, REST_SECONDS_FIRST * 2.0 ** min(self.errors - 1, 20))

    def over(self) -> None:
        """Note that the loop works again."""
        if self.errors:
            self.errors = 0
            self._logged.clear()
