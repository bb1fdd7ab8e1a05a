"""Forked workers that are killed and stopped, and the line on which each tells its parent what it does.

The parent forks, so it must have no threads and no store open: no connection may cross a fork.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable

SILENT_SECONDS_MAX = 20.0


def pause(seconds: float) -> None:
    """Let real processes and real leases have their time; nothing waits for a condition this way."""
    select.select([], [], [], max(0.0, seconds))


class Line:
    """A worker's line to its parent: one word per message, and a place to be stopped at."""

    def __init__(self, out: int, back: int) -> None:
        self._out = out
        self._back = back

    def say(self, *words: str) -> None:
        """Send one message; no word has a space."""
        os.write(self._out, (" ".join(words) + "\n").encode())

    def hear(self) -> str:
        """Wait for the parent's word, one letter. A parent that is gone ends the worker."""
        word = os.read(self._back, 1)
        if not word:
            os._exit(3)
        return word.decode()


class Worker:
    """A forked process that does ``work`` and says on its line what it does."""

    def __init__(self, work: Callable[[Line], None]) -> None:
        heard, out = os.pipe()
        back, say = os.pipe()
        self._buffer = b""
        self.said: list[list[str]] = []  # kept by the listener
        self.ended = False
        self.pid = os.fork()
        if self.pid == 0:
            os.close(heard)
            os.close(say)
            self._live(work, Line(out, back))
        os.close(out)
        os.close(back)
        self._heard, self._say = heard, say

    @staticmethod
    def _live(work: Callable[[Line], None], line: Line) -> None:
        code = 1
        try:
            work(line)
            code = 0
        except BaseException:  # noqa: BLE001 - a forked worker must never return into its parent's code
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def tell(self, word: str = "x") -> None:
        """The word that the worker's ``hear`` waits for, one letter."""
        os.write(self._say, word.encode())

    def fileno(self) -> int:
        """For ``select``."""
        return self._heard

    def has_said(self) -> bool:
        """Whether ``next`` has a message without looking at the line."""
        return b"\n" in self._buffer

    def next(self, seconds: float = SILENT_SECONDS_MAX) -> list[str] | None:
        """The worker's next message; None where its line ended."""
        ends = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = ends - time.monotonic()
            assert left > 0, f"worker {self.pid} says nothing"
            if select.select([self._heard], [], [], left)[0]:
                more = os.read(self._heard, 65536)
                if not more:
                    return None
                self._buffer += more
        message, self._buffer = self._buffer.split(b"\n", 1)
        return message.decode().split()

    def wait_for(self, word: str) -> list[str] | None:
        """The next message that begins with this word; None where the line ended before."""
        while (message := self.next()) is not None:
            if message[0] == word:
                return message
        return None

    def rest(self, seconds: float = SILENT_SECONDS_MAX) -> list[list[str]]:
        """Everything it still had to say, up to the end of its line; ``seconds`` how long it may be silent."""
        said = []
        while (message := self.next(seconds)) is not None:
            said.append(message)
        return said

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def kill(self) -> int:
        """SIGKILL, and its wait status."""
        self.signal(signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end; return the exit code (negative: the signal)."""
        assert not self.ended
        self.ended = True
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Give up the line."""
        os.close(self._heard)
        os.close(self._say)


def ready(workers: Iterable[Worker], seconds: float = SILENT_SECONDS_MAX) -> list[Worker]:
    """The workers that have something to say (or are gone)."""
    workers = list(workers)
    heard = [worker for worker in workers if worker.has_said()]
    found = heard or select.select(workers, [], [], seconds)[0]
    assert found, "no worker says anything"
    return found
