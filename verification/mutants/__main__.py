"""``python -m verification.mutants``: let the kit at every mutant, and print what found it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from verification.mutants import MUTANTS, PARTS
from verification.mutants.catalogue import Tried, try_mutant

EXAMPLES = """\
examples:
  python -m verification.mutants                          every mutant, and what found it
  python -m verification.mutants --jobs 2                 in two processes
  python -m verification.mutants --only lapse-proceeds --all
                                                           one of them, and every part of the kit that finds it
  python -m verification.mutants --control                the code as it is: no part may find anything
  python -m verification.mutants --list                   what there is
  python -m verification.mutants --json                   for machines

exit codes: 0 every mutant was found (--control: nothing was), 1 one was not, 2 a wrong argument
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit code."""
    given = _arguments(arguments)
    if given.list:
        for mutant in MUTANTS:
            sys.stdout.write(f"{mutant.name:<32}{mutant.breaks:<4}{mutant.does}\n")
        return 0
    if given.control:
        return _control()
    found = []
    if not given.json:
        sys.stdout.write(f"{'mutant':<32}{'breaks':<8}{'found by':<11}{'after':<24}{'seconds':>8}\n")
    for one in _try_all(given):
        found.append(one)
        if not given.json:
            sys.stdout.write(_line(one, told=given.all or bool(given.only)))
            sys.stdout.flush()
    survivors = [one.mutant.name for one in found if not one.findings]
    if given.json:
        sys.stdout.write(json.dumps([_document(one) for one in found], indent=2) + "\n")
    else:
        seconds = sum(one.seconds for one in found)
        sys.stdout.write(f"{len(found)} mutants, {len(found) - len(survivors)} found, in {seconds:.0f} s\n")
    return 1 if survivors else 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m verification.mutants",
        description="Semel with one line wrong, many times over: the kit must find every one.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this mutant (repeatable)")
    parser.add_argument("--all", action="store_true", help="ask every part of the kit, not only until one finds it")
    parser.add_argument("--control", action="store_true", help="run the kit on the code as it is")
    parser.add_argument("--list", action="store_true", help="list the mutants")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.only) - {mutant.name for mutant in MUTANTS})
    if unknown:
        parser.error(f"there is no mutant {unknown[0]!r}; see --list")
    if given.jobs < 1:
        parser.error("--jobs must be at least 1")
    return given


def _try_all(given: argparse.Namespace) -> Iterator[Tried]:
    names = [mutant.name for mutant in MUTANTS if not given.only or mutant.name in given.only]
    if given.jobs == 1:
        yield from (_one(name, given.all) for name in names)
        return
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as processes:
        yield from processes.map(_one, names, [given.all] * len(names))


def _one(name: str, everything: bool) -> Tried:
    """One mutant, by name: a patch cannot be sent to another process."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    one = try_mutant(mutant, everything=everything)
    return one.without_patch()


def _line(one: Tried, *, told: bool) -> str:
    mutant = one.mutant
    if not one.findings:
        return f"{mutant.name:<32}{mutant.breaks:<8}{'NOTHING':<11}{'':<24}{one.seconds:>8.1f}\n"
    lines = []
    for finding in one.findings:
        after = f"{finding.after:,} {finding.unit}"
        lines.append(f"{mutant.name:<32}{mutant.breaks:<8}{finding.part:<11}{after:<24}{one.seconds:>8.1f}\n")
        if told:
            lines.append(f"    {finding.said}\n")
    return "".join(lines)


def _document(one: Tried) -> dict[str, object]:
    findings = [
        {"part": finding.part, "after": finding.after, "unit": finding.unit, "said": finding.said}
        for finding in one.findings
    ]
    mutant = one.mutant
    return {
        "mutant": mutant.name,
        "does": mutant.does,
        "breaks": mutant.breaks,
        "found": bool(one.findings),
        "findings": findings,
        "seconds": round(one.seconds, 2),
    }


def _control() -> int:
    bad = 0
    for name, part in PARTS.items():
        finding = part()
        bad += finding is not None
        sys.stdout.write(f"{name:<11}{'nothing' if finding is None else finding.said}\n")
        sys.stdout.flush()
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
