"""Every case on every subject: one subject after the other, each with servers and a store of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.correctness.cases import Case, Run
from bench.correctness.subjects import Subject
from bench.correctness.target import CaseError, Target
from bench.correctness.verdicts import Finding, Verdict
from bench.processes import BenchError
from bench.setup import Setup

Findings = dict[tuple[str, str], Finding]  # by the names of subject and case


def compare(subjects: Sequence[Subject], cases: Sequence[Case], folder: Path, urls: Mapping[str, str]) -> Findings:
    """Fill the table.

    Parameters: ``folder`` for stores and effects; ``urls`` of the servers that the run has started, by kind of store.
    Raises BenchError: a case could not be brought about, so that the table would say nothing.
    """
    found: Findings = {}
    for number, subject in enumerate(subjects, start=1):
        print(f"bench: {number} of {len(subjects)}: {subject.name}", file=sys.stderr, flush=True)
        place = folder / subject.name
        place.mkdir()
        for case, finding in asyncio.run(examine(subject, cases, place, urls)).items():
            found[subject.name, case] = finding
    return found


async def examine(subject: Subject, cases: Sequence[Case], folder: Path, urls: Mapping[str, str]) -> dict[str, Finding]:
    """One subject's column, in the order of the cases."""
    found = {case.name: finding for case in cases if (finding := _without_server(subject, case)) is not None}
    for run in Run:
        chosen = [case for case in cases if case.run is run and case.name not in found]
        if chosen:
            found |= await _with_server(subject, run, chosen, folder, urls)
    return {case.name: _cite(found[case.name], subject, case) for case in cases}


def _without_server(subject: Subject, case: Case) -> Finding | None:
    if case.durable and not subject.durable:
        return Finding(Verdict.NOT_OFFERED, "Its memory store ends with the process.")
    reason = subject.not_offered.get(case.name)
    return None if reason is None else Finding(Verdict.NOT_OFFERED, reason)


async def _with_server(
    subject: Subject, run: Run, cases: Sequence[Case], folder: Path, urls: Mapping[str, str]
) -> dict[str, Finding]:
    book = folder / run.name.lower()
    book.mkdir()
    lease = subject.lease_seconds if run is Run.LEASED else None
    setup = Setup(
        module=subject.module,
        store=_store(subject, book, urls),
        book=str(book),
        lease_seconds=lease,
        callers=run is not Run.ALIKE,
    )
    target = Target(setup, subject.python, book / "server.log", lease)
    try:
        await target.start()
    except BenchError as error:
        if run is not Run.ALIKE:
            raise
        return {case.name: Finding(Verdict.NO_START, _shorten(str(error))) for case in cases}
    found = {}
    try:
        for case in cases:
            try:
                found[case.name] = await case.check(target, case.name)
            except CaseError as error:
                raise BenchError(f"{subject.name}, {case.title}: {error}") from error
    finally:
        await target.stop()
    return found


def _store(subject: Subject, folder: Path, urls: Mapping[str, str]) -> str:
    if "://" in subject.store:
        return subject.store
    known = {"memory": "memory://", "sqlite": f"sqlite:///{folder / 'store.db'}", **urls}
    return known[subject.store]


def _cite(finding: Finding, subject: Subject, case: Case) -> Finding:
    """The finding with what we remark, and what the package says beforehand."""
    if finding.verdict is Verdict.NOT_OFFERED:
        return finding
    names = (case.name, f"{case.name}/{subject.kind}")
    remarks = [subject.remarks[name] for name in names if name in subject.remarks]
    said = [f"It says: “{subject.documented[name]}”" for name in names if name in subject.documented]
    return replace(finding, note=" ".join([finding.note, *remarks, *said]))


def _shorten(text: str) -> str:
    """The text of an exception, without its class."""
    said = text.rpartition("it said: ")[2]
    return f"The exception: “{said.partition(': ')[2] or said}”"
