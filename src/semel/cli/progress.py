"""Report progress of long work on stderr: amount, rate and remaining time.

A terminal gets one line, rewritten in place. With ``--progress`` any other stderr gets a line every few seconds. The
result on stdout never contains any progress.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, TextIO, TypeVar

from semel.core.timing import span_text
from semel.telemetry import safe

T = TypeVar("T")

LINE_SECONDS: Final = 5.0
REDRAW_SECONDS: Final = 0.2
SHOWN_AFTER_SECONDS: Final = 0.5  # quick work shows no progress
_ERASE: Final = "\r\x1b[2K"


def add_progress(parser: argparse.ArgumentParser) -> None:
    """Declare ``--progress``, for commands whose work may be long."""
    parser.add_argument(
        "--progress", action="store_true", help="report progress on stderr even if it is not a terminal"
    )


class ProgressLine:
    """Reports the progress of a piece of work.

    Parameters: ``name`` of the work; ``asked`` whether ``--progress`` was given; ``total`` number of units, if
    known; ``clock`` in seconds.

    >>> from io import StringIO
    >>> seconds = iter([0.0, 1.0, 10.0])
    >>> to = StringIO()
    >>> progress = ProgressLine("export", asked=True, total=400, stream=to, clock=lambda: next(seconds))
    >>> progress.tell(10), progress.tell(100)
    (None, None)
    >>> print(to.getvalue().splitlines()[-1])
    export: 100 of 400, 10/s, about 30 s left
    """

    def __init__(
        self,
        name: str,
        *,
        asked: bool,
        total: int | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = total
        self._name = name
        self._stream = stream if stream is not None else sys.stderr
        self._redraws = self._stream is not None and self._stream.isatty()
        self._shows = self._stream is not None and (asked or self._redraws)
        self._asked = asked
        self._clock = clock
        self._begun = clock() if self._shows else 0.0
        self._next = self._begun if asked and not self._redraws else self._begun + SHOWN_AFTER_SECONDS
        self._drawn = False

    def tell(self, done: int, more: str = "") -> None:
        """Report the number done; ``more`` is added to the line."""
        if not self._shows:
            return
        now = self._clock()
        if now < self._next:
            return
        self._next = now + (REDRAW_SECONDS if self._redraws else LINE_SECONDS)
        line = safe(self._line(done, more, now))
        self._drawn = self._redraws
        print(f"{_ERASE}{line}" if self._redraws else line, end="" if self._redraws else "\n", file=self._stream)
        self._stream.flush()

    def end(self) -> None:
        """End the work and clear the terminal's line, so that only the result remains."""
        if self._drawn:
            print(_ERASE, end="", file=self._stream, flush=True)
            self._drawn = False

    def _line(self, done: int, more: str, now: float) -> str:
        seconds = max(now - self._begun, 1e-9)
        rate = done / seconds
        known = "" if self.total is None else f" of {max(self.total, done)}"
        left = ""
        if self.total is not None and rate > 0 and done < self.total:
            left = f", about {span_text(int((self.total - done) / rate * 1_000_000))} left"
        return f"{self._name}: {done}{known}, {rate:.0f}/s{left}{f', {more}' if more else ''}"


def show_elapsed(name: str, work: Callable[[], T], *, asked: bool) -> T:
    """Do one long piece of work without measurable progress, and show the seconds it has taken.

    Runs the work in a thread, so that Ctrl-C works while a database library is busy. Raises what the work raises.

    >>> show_elapsed("count", lambda: 2 + 2, asked=False)
    4
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def perform() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 -- raised again in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=perform, name=f"semel-{name}", daemon=True)
    progress = _Seconds(name, asked=asked)
    thread.start()
    while thread.is_alive():
        thread.join(REDRAW_SECONDS)
        progress.tell(0)
    progress.end()
    if errors:
        raise errors[0]
    return results[0]


class _Seconds(ProgressLine):
    """Progress that shows only the elapsed time."""

    def _line(self, done: int, more: str, now: float) -> str:
        return f"{self._name}: {now - self._begun:.0f} s so far"
