"""How findings are shown: one Markdown text, or one JSON document."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from bench.correctness.cases import Case
from bench.correctness.run import Findings
from bench.correctness.subjects import Subject
from bench.correctness.verdicts import LEGEND, Finding
from bench.table import as_markdown


def as_json(findings: Findings, about: Mapping[str, str]) -> str:
    """Every cell with its note, and where it was found."""
    cells = [
        {"subject": subject, "case": case, "verdict": found.verdict.value, "status": found.status, "note": found.note}
        for (subject, case), found in findings.items()
    ]
    legend = {verdict.value: meaning for verdict, meaning in LEGEND.items()}
    return json.dumps({"about": about, "legend": legend, "cells": cells}, indent=2, ensure_ascii=False)


def as_text(findings: Findings, subjects: Sequence[Subject], cases: Sequence[Case], about: Mapping[str, str]) -> str:
    """The table, its legend, a note on each cell, and where it was found."""
    packages = list(dict.fromkeys(subject.package for subject in subjects))
    rows = []
    for case in cases:
        cells = {package: _cell(findings, subjects, package, case, Finding.words) for package in packages}
        rows.append([case.title, *("; ".join(_describe_groups(groups)) for groups in cells.values())])
    used = {found.verdict for found in findings.values()}
    legend = [[verdict.value, meaning] for verdict, meaning in LEGEND.items() if verdict in used]
    parts = [
        as_markdown(("case", *packages), rows),
        "A number is the status of the answer that a word speaks of; a store is named where a package's stores differ.",
        as_markdown(("word", "what happened"), legend),
        *(_notes(findings, subjects, packages, case) for case in cases),
        "\n".join(f"- {name}: {text}" for name, text in about.items()),
    ]
    return "\n\n".join(parts)


def _cell(
    findings: Findings, subjects: Sequence[Subject], package: str, case: Case, told: Callable[[Finding], str]
) -> dict[str, list[str]]:
    """The stores of a package, grouped by their results; one entry without stores where all are alike."""
    groups: dict[str, list[str]] = {}
    for subject in subjects:
        if subject.package == package:
            groups.setdefault(told(findings[subject.name, case.name]), []).append(subject.kind)
    return {next(iter(groups)): []} if len(groups) == 1 else groups


def _describe_groups(groups: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{words} ({', '.join(stores)})" if stores else words for words, stores in groups.items()]


def _notes(findings: Findings, subjects: Sequence[Subject], packages: Sequence[str], case: Case) -> str:
    lines = [f"**{case.title}**", ""]
    for package in packages:
        for note, stores in _cell(findings, subjects, package, case, lambda found: found.note).items():
            where = f" ({', '.join(stores)})" if stores else ""
            lines.append(f"- {package}{where}: {note}")
    return "\n".join(lines)
