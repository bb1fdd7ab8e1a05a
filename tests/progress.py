"""What a long run of the suite says while it runs: how far it is, what failed so far, what took longest.

A whole run has some ten thousand tests, whose dots say little. From a few hundred tests on, each further twentieth of
them is a line; a failure is named at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import pytest

MANY: Final = 500
PARTS: Final = 20


class Progress:
    """Counts what has ended, in the process that prints."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began = now()
        self._total = 0
        self._ended = 0
        self._failed = 0
        self._told = 0
        self._terminal: pytest.TerminalReporter | None = None

    @property
    def is_long(self) -> bool:
        """Whether lines take the place of dots."""
        return self._total > MANY

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._terminal = session.config.pluginmanager.get_plugin("terminalreporter")

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._begin(len(ids))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._begin(len(session.items))

    def _begin(self, total: int) -> None:
        if total and not self._total:
            self._total, self._began = total, self._now()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: object) -> tuple[str, str, str] | None:
        if not self.is_long or not isinstance(report, pytest.TestReport):
            return None
        if report.failed:  # named on its own line
            return ("failed", "", "FAILED") if report.when == "call" else ("error", "", "ERROR")
        return ("passed", "", "") if report.when == "call" and report.passed else None  # counted, and not printed

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed += 1
            self._say(f"FAILED {report.nodeid}{'' if report.when == 'call' else f' ({report.when})'}")
        if report.when == "teardown":
            self._ended += 1
            part = self._ended * PARTS // max(self._total, 1)
            if part > self._told:
                self._told = part
                self._say(self.line())

    def line(self) -> str:
        """How far the run is."""
        seconds = self._now() - self._began
        left = seconds / self._ended * (self._total - self._ended)
        failed = f", {self._failed} failed" if self._failed else ""
        return (
            f"semel: {self._ended:,} of {self._total:,} tests in {_minutes(seconds)}{failed}; "
            f"about {_minutes(left)} to go"
        )

    def _say(self, line: str) -> None:
        if self.is_long and self._terminal is not None:
            self._terminal.ensure_newline()
            self._terminal.write_line(line)


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
