"""Reports of a run's findings: text, Markdown and HTML for people, versioned JSON and JUnit for machines."""

from __future__ import annotations

import html
import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from xml.etree import ElementTree

from semel.conform.catalogue import Check

FORMAT: Final = 1
_WIDTH: Final = 110
_WORDS: Final = {"passed": "ok", "failed": "FAILED", "not-tried": "not tried"}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one check: ``outcome`` is passed, failed or not-tried; ``came`` is its observation or the gap."""

    check: Check
    outcome: str
    came: str = ""
    seconds: float = 0.0

    def finding(self) -> list[tuple[str, str]]:
        """Return the labelled parts of a finding, in order."""
        check = self.check
        return [
            ("sent", check.sent),
            ("came", self.came),
            ("means", check.means),
            ("change", check.change),
            ("clause", check.clause),
        ]


@dataclass(frozen=True, slots=True)
class Report:
    """Every result of one run."""

    target: str
    operation: str
    profile: str
    results: tuple[Result, ...]
    seconds: float = 0.0

    @property
    def failed(self) -> tuple[Result, ...]:
        """The failed checks."""
        return tuple(each for each in self.results if each.outcome == "failed")

    @property
    def ok(self) -> bool:
        """Whether no "must" or "should" check failed, and at least one check passed."""
        return not any(each.check.level != "best" for each in self.failed) and any(
            each.outcome == "passed" for each in self.results
        )

    def counts(self) -> dict[str, dict[str, int]]:
        """Count the outcomes by level."""
        counted = Counter((each.check.level, each.outcome) for each in self.results)
        return {level: {outcome: counted[level, outcome] for outcome in _WORDS} for level in ("must", "should", "best")}

    def summary(self) -> str:
        """Summarize the counts in one line.

        >>> Report("http://127.0.0.1", "POST /payments", "semel", ()).summary()
        '0 checks: 0 must, 0 should, 0 best failed; 0 passed, 0 not tried'
        """
        counts = self.counts()
        failed = ", ".join(f"{counts[level]['failed']} {level}" for level in counts)
        passed, left = (sum(each[name] for each in counts.values()) for name in ("passed", "not-tried"))
        return f"{len(self.results)} checks: {failed} failed; {passed} passed, {left} not tried"

    def lines(self, *, every: bool = False) -> list[tuple[str, str]]:
        """Return text for people, as pairs of a style and a line; with ``every``, list passed checks too."""
        found = [("bold", f"{self.operation} of {self.target}, profile {self.profile}")]
        for each in self.results:
            if each.outcome == "failed":
                found += [("", ""), ("red" if each.check.level != "best" else "yellow", _title(each))]
                found += [("", line) for label, text in each.finding() for line in _label_lines(label, text)]
            elif every:
                found.append(("", f"{_WORDS[each.outcome]:<9} {each.check.id}"))
        lacks: dict[str, list[str]] = {}
        for each in self.results:
            if each.outcome == "not-tried":
                lacks.setdefault(each.came, []).append(each.check.id)
        if lacks:
            found += [("", ""), ("bold", "not tried")]
            found += [("", line) for why, ids in lacks.items() for line in _label_lines("", f"{why}: {', '.join(ids)}")]
        return [*found, ("", ""), ("green" if self.ok else "red", f"{self.summary()} ({self.seconds:.1f} s)")]

    def document(self) -> dict[str, Any]:
        """Return the JSON document; docs/conformance.md describes its members."""
        return {
            "format": FORMAT,
            "tool": "semel conform",
            "target": self.target,
            "operation": self.operation,
            "profile": self.profile,
            "ok": self.ok,
            "seconds": round(self.seconds, 3),
            "counts": self.counts(),
            "checks": [_as_document(each) for each in self.results],
        }

    def junit(self) -> str:
        """Return a JUnit file: a failed "must" or "should" is a failure; a failed "best" passes with a note."""
        failures = sum(each.check.level != "best" for each in self.failed)
        skipped = sum(each.outcome == "not-tried" for each in self.results)
        root = ElementTree.Element(
            "testsuite",
            name=f"semel conform {self.operation}",
            tests=str(len(self.results)),
            failures=str(failures),
            errors="0",
            skipped=str(skipped),
            time=f"{self.seconds:.3f}",
        )
        for each in self.results:
            case = ElementTree.SubElement(
                root,
                "testcase",
                classname=f"conform.{each.check.level}",
                name=each.check.id,
                time=f"{each.seconds:.3f}",
            )
            text = _printable("\n".join(f"{label}: {part}" for label, part in each.finding()))
            if each.outcome == "not-tried":
                ElementTree.SubElement(case, "skipped", message=_printable(each.came))
            elif each.outcome == "failed":
                name = "failure" if each.check.level != "best" else "system-out"
                found = ElementTree.SubElement(case, name)
                found.text = text
                if name == "failure":
                    found.set("message", _printable(each.came))
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"

    def markdown(self) -> str:
        """Return a Markdown page with the findings and a table of all checks."""
        lines = [
            f"# {_cell(self.operation)}",
            "",
            f"{_cell(self.target)}, profile {self.profile}. {self.summary()}.",
            "",
        ]
        for each in self.failed:
            lines += [f"## {_title(each)}", ""]
            lines += [f"- **{label}**: {_cell(text)}" for label, text in each.finding()]
            lines.append("")
        lines += ["| check | level | clause | result |", "| --- | --- | --- | --- |"]
        lines += [
            f"| `{each.check.id}` | {each.check.level} | {_cell(each.check.clause)} | {_WORDS[each.outcome]} |"
            for each in self.results
        ]
        return "\n".join(lines) + "\n"

    def html(self) -> str:
        """Return one self-contained HTML page."""
        parts = [_HEAD, f"<h1>{html.escape(self.operation)}</h1>"]
        parts.append(f"<p>{html.escape(self.target)}, profile {html.escape(self.profile)}. {self.summary()}.</p>")
        for each in self.failed:
            parts.append(f"<h2>{html.escape(_title(each))}</h2><dl>")
            parts += [f"<dt>{label}</dt><dd>{html.escape(text)}</dd>" for label, text in each.finding()]
            parts.append("</dl>")
        parts.append("<table><tr><th>check</th><th>level</th><th>clause</th><th>result</th></tr>")
        for each in self.results:
            cells = (each.check.id, each.check.level, each.check.clause, _WORDS[each.outcome])
            columns = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
            parts.append(f'<tr class="{each.outcome}" title="{html.escape(each.came)}">{columns}</tr>')
        return "\n".join([*parts, "</table></body></html>"]) + "\n"


_HEAD: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>semel conform</title><style>
body { font-family: sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; line-height: 1.4 }
table { border-collapse: collapse } td, th { border: 1px solid #999; padding: .2rem .5rem; text-align: left }
.failed td:last-child { background: #fdd } .passed td:last-child { background: #dfd } dt { font-weight: bold }
</style></head><body>"""


def _title(result: Result) -> str:
    return f"{result.check.level.upper()} {result.check.id}: {result.check.title}"


def _label_lines(label: str, text: str) -> list[str]:
    first = f"   {label + ':':<8}" if label else "   "
    further = " " * len(first)
    # Users copy a check's name into --only: never break it at its hyphens.
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _printable(text: str) -> str:
    """Replace the characters that XML cannot hold."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


def _as_document(result: Result) -> Mapping[str, Any]:
    check = result.check
    return {
        "id": check.id,
        "title": check.title,
        "level": check.level,
        "clause": check.clause,
        "outcome": result.outcome,
        "seconds": round(result.seconds, 3),
        "sent": check.sent,
        "came": result.came,
        "means": check.means if result.outcome == "failed" else "",
        "change": check.change if result.outcome == "failed" else "",
    }
