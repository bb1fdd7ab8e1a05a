"""A check's findings, and the report that contains them.

A finding has four parts, always in this order: what was sent, what came, what that means, what to change. It has no
random parts (keys are named by their purpose), so two runs of the same fault read the same.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Final

_WIDTH: Final = 116
_INDENT: Final = " " * 11


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: ``check`` names the test that saw it."""

    check: str
    sent: str
    came: str
    means: str
    change: str

    def text(self) -> str:
        """Return the finding as lines for people."""
        parts = (("sent", self.sent), ("came", self.came), ("means", self.means), ("change", self.change))
        return "\n".join(_label_lines(label, text) for label, text in parts)


@dataclass(frozen=True, slots=True)
class NotTried:
    """A check that could not be made here, and what to give so that it can."""

    check: str
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """The observations about one target: passed checks, failures, skipped checks and remarks."""

    target: str
    request: str
    held: tuple[str, ...]
    findings: tuple[Finding, ...]
    not_tried: tuple[NotTried, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no check failed (untried checks do not count)."""
        return not self.findings

    def text(self) -> str:
        """Return the whole report, always in the same order."""
        lines = [f"{self.request} of {self.target} {self._headline()}"]
        for number, finding in enumerate(self.findings, start=1):
            lines += ["", f"{number}. {title(finding.check)}", finding.text()]
        if self.held:
            lines += ["", _list_lines("held", [title(name) for name in self.held])]
        if self.not_tried:
            lines.append("")
            lines += [_label_lines("not tried", f"{title(each.check)}: {each.reason}") for each in self.not_tried]
        if self.remarks:
            lines.append("")
            lines += [_label_lines("remark", remark) for remark in self.remarks]
        return "\n".join(lines)

    def describe_untried(self) -> str:
        """Describe the untried checks, and the arguments that they need; empty if all were tried."""
        checks: dict[str, list[str]] = {}
        for each in self.not_tried:
            checks.setdefault(each.reason, []).append(each.check)
        reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in checks.items())
        return f"{self.request} of {self.target}: not everything was tried. {reasons}" if reasons else ""

    def _headline(self) -> str:
        if self.ok:
            return "is safe to retry, as far as it was tried"
        count = "one finding" if len(self.findings) == 1 else f"{len(self.findings)} findings"
        return f"is not safe to retry: {count}"

    def __str__(self) -> str:
        return self.text()


class NotIdempotent(AssertionError):
    """The target is not safe to retry. ``report`` has all observations."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.text())
        self.report = report


class NotTriedWarning(UserWarning):
    """The tested checks passed, but some were not tried; the text names the missing arguments.

    With ``filterwarnings = ["error::semel.testing.idempotent.NotTriedWarning"]`` it fails the test.
    """


class CannotRun(AssertionError):
    """The test cannot run: ``reason`` explains why, ``remedy`` what to change."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"this cannot be tested: {reason}\n{_label_lines('remedy', remedy)}")
        self.reason = reason
        self.remedy = remedy


class NotGiven(CannotRun):
    """One check needs something that the test has not given, or that is out of reach."""


def title(check: str) -> str:
    """Return a check's name as words.

    >>> title("missing_key_refused")
    'missing key refused'
    """
    return check.replace("_", " ")


def _label_lines(label: str, text: str) -> str:
    lines = [
        line
        for number, part in enumerate(text.splitlines() or [""])
        for line in textwrap.wrap(
            part,
            _WIDTH,
            initial_indent=f"   {label + ':':<7} " if number == 0 else _INDENT,
            subsequent_indent=_INDENT,
            break_on_hyphens=False,
            break_long_words=False,
        )
    ]
    return "\n".join(lines)


def _list_lines(label: str, names: list[str]) -> str:
    return _label_lines(label, ", ".join(names))
