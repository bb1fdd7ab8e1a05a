"""The results: a page for people, and a JSON document with every report whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.conform.agreement import Row
from bench.conform.subjects import Subject
from bench.table import as_markdown as as_table
from semel.conform import FORMAT, CannotRun, Report, load_catalogue
from semel.conform.catalogue import LEVELS
from semel.conform.report import Result

RESULTS_FORMAT: Final = 1
_MARKS: Final = {"passed": "ok", "failed": "**fails**", "not-tried": "–"}
_INTRODUCTION: Final = """\
<!-- written by `make conform` -->

# Results of `semel conform`

[`semel conform`](conformance.md) checked Semel and public packages with the same purpose, each with the default
settings of its README, on one small shop, and Semel's reference service. If a package requires no key,
`key.required` is false for it; if a package cannot serve a kind of answer, those checks are not tried.
The levels are the catalogue's; the draft itself says SHOULD for nearly all of it, and a package may not aim to
follow it at all.

`make conform` repeats this: it installs the packages into separate folders, starts the stores' servers on free ports,
and writes this page and `conformance-results.json`, which has every finding.
"""

Outcome = Report | CannotRun


def as_json(found: Mapping[str, tuple[Subject, Outcome]], rows: Sequence[Row], about: Mapping[str, str]) -> str:
    """Every report, and where it was found."""
    document = {
        "format": RESULTS_FORMAT,
        "reportFormat": FORMAT,
        "about": about,
        "subjects": [
            {
                "name": name,
                "package": subject.package,
                "version": subject.version,
                "store": subject.store,
                **({"cannotRun": str(outcome)} if isinstance(outcome, CannotRun) else {"report": _report(outcome)}),
            }
            for name, (subject, outcome) in found.items()
        ],
        "agreement": [row._asdict() for row in rows],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _report(report: Report) -> dict[str, Any]:
    document = report.document()
    checks = [
        {name: check[name] for name in ("id", "level", "outcome", "came") if check[name]}
        for check in document.pop("checks")
    ]
    return {**{name: document[name] for name in ("profile", "ok", "counts")}, "checks": checks}


def read_json(path: Path) -> tuple[dict[str, tuple[Subject, Outcome]], list[Row], dict[str, str]]:
    """What an earlier run has written, for a run of some subjects alone; nothing where there is none of this format."""
    document = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if (document.get("format"), document.get("reportFormat")) != (RESULTS_FORMAT, FORMAT):
        return {}, [], {}
    checks = {check.id: check for check in load_catalogue()}
    found: dict[str, tuple[Subject, Outcome]] = {}
    for each in document["subjects"]:
        subject = Subject(package=each["package"], version=each["version"], store=each["store"], kind="")
        if "report" in each:
            results = tuple(
                Result(checks[one["id"]], one["outcome"], one.get("came", ""))
                for one in each["report"]["checks"]
                if one["id"] in checks
            )
            found[each["name"]] = subject, Report("", "", each["report"]["profile"], results)
        else:
            found[each["name"]] = subject, CannotRun(*each["cannotRun"].removeprefix("cannot run: ").rsplit("; ", 1))
    return found, [Row(**row) for row in document["agreement"]], document["about"]


def as_markdown(found: Mapping[str, tuple[Subject, Outcome]], rows: Sequence[Row], about: Mapping[str, str]) -> str:
    """The page."""
    reports = {name: outcome for name, (_, outcome) in found.items() if isinstance(outcome, Report)}
    parts = [_INTRODUCTION, "## In numbers\n", _numbers(found), "## What fails\n", _failures(found, reports)]
    parts += ["## Beside `make compare`\n", _agreement(rows), "## Where it was found\n"]
    parts.append("\n".join(f"- {name}: {text}" for name, text in about.items()) + "\n")
    return "\n".join(parts)


def _numbers(found: Mapping[str, tuple[Subject, Outcome]]) -> str:
    lines = [
        "| package | version | store | profile | must failed | should failed | best failed | passed | not tried |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for subject, outcome in found.values():
        head = f"| {subject.package} | {subject.version} | {subject.store} "
        if isinstance(outcome, CannotRun):
            lines.append(f"{head}| {outcome} | | | | | |")
            continue
        counts = outcome.counts()
        failed = " | ".join(str(counts[level]["failed"]) for level in ("must", "should", "best"))
        passed, left = (sum(each[name] for each in counts.values()) for name in ("passed", "not-tried"))
        lines.append(f"{head}| {outcome.profile} | {failed} | {passed} | {left} |")
    return "\n".join(lines) + "\n"


def _failures(found: Mapping[str, tuple[Subject, Outcome]], reports: Mapping[str, Report]) -> str:
    """Each check that fails anywhere, and for each package the stores on which it does."""
    packages = list(dict.fromkeys(subject.package for subject, _ in found.values()))
    outcomes: dict[tuple[str, str], dict[str, str]] = {}
    titles: dict[str, str] = {}
    for name, report in reports.items():
        subject = found[name][0]
        for result in report.results:
            outcomes.setdefault((result.check.id, subject.package), {})[subject.store] = result.outcome
            if result.outcome == "failed":
                titles[result.check.id] = f"`{result.check.id}` ({result.check.level}): {result.check.title}"
    lines = [f"| check | {' | '.join(packages)} |", f"| --- |{' --- |' * len(packages)}"]
    levels = {result.check.id: LEVELS.index(result.check.level) for each in reports.values() for result in each.results}
    for check, title in sorted(titles.items(), key=lambda pair: (levels[pair[0]], pair[0])):
        cells = [_cell(outcomes.get((check, package), {})) for package in packages]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\n`–`: not tried, because the case or the package lacks what the check needs.\n"


def _cell(by_store: Mapping[str, str]) -> str:
    if len(set(by_store.values())) <= 1:
        return _MARKS[next(iter(by_store.values()), "not-tried")]
    return "; ".join(f"{store}: {_MARKS[outcome]}" for store, outcome in by_store.items())


def _agreement(rows: Sequence[Row]) -> str:
    if not rows:
        return "Not compared in this run.\n"
    same = sum(row.agrees for row in rows)
    lines = [
        "`make compare` brings about cases of its own, with gates in the handlers. Where a case and a check look for "
        f"the same, they agree in {same} of {len(rows)} cells."
    ]
    differing = [row for row in rows if not row.agrees]
    if differing:
        titles = ("package and store", "case", "`make compare`", "check", "`semel conform`", "why")
        cells = [(row.subject, row.case, row.verdict, f"`{row.check}`", row.outcome, row.why) for row in differing]
        lines += ["", as_table(titles, cells)]
    return "\n".join(lines) + "\n"
