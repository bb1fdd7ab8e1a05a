"""Mutation testing of the rules: how many small changes of the pure rules do their tests notice?

    python scripts/mutate.py                       all rules, in a new temporary folder
    python scripts/mutate.py core/decide bulk/rules  only these
    python scripts/mutate.py core/command_flow     a file beyond the rules, with its own tests: a sample
    python scripts/mutate.py --into build/mutate   keep the folder, and take up there what was not finished
    python scripts/mutate.py --into build/mutate --again
                                                   try the survivors there again, with today's tests

mutmut makes the changes and knows which tests reach which function; ours would need a syntax tree with formatting and a
process for each change. It is configured here and works on a copy, so that nothing of it lies in the checkout. Needs
`pip install mutmut`; it can be stopped and started again. What no test can see, because the changed code does the same,
stands in scripts/equivalent_mutants.toml with its reason, one by one; the score is told with those and without. An
entry that no survivor needs is refused. Exit code 1: the score, where those count as survivors, is below --least.

What it does not change: code outside of functions, such as the table of verdicts, and default arguments' names.
The tests of the table are shown to be sharp by the mutants made by hand (python -m verification.mutants).
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
FILES: Final = (
    "core/decide",
    "core/settle",
    "core/outcomes",
    "core/timing",
    "core/identity",
    "core/record",
    "keys",
    "core/backoff",
    "recipe",
    "quota",
    "http/fingerprint/canonical",
    "http/fingerprint/fingerprinter",
    "http/fingerprint/multipart",
    "steps/rules",
    "steps/findings",
    "steps/doubts",
    "steps/options",
    "bulk/rules",
    "reconciliation/resolutions",
    "reconciliation/rules",
    "outbox/rules",
    "operations/references",
    "sealing/rules",
    "retention/rules",
    "workers/rules",
)
TESTS: Final = "tests/rules"
# Beyond the rules: with the tests that are about them and need no server but a file. A sample, not a part of the score.
BEYOND: Final[dict[str, tuple[str, ...]]] = {
    "core/command_flow": (
        "tests/engine/test_faults.py",
        "tests/engine/test_waiting.py",
        "tests/engine/test_schedules.py",
    ),
    "atomic/flow": (
        "tests/atomic/test_units.py",
        "tests/atomic/test_refused_commit.py",
        "tests/engine/test_schedules.py",
    ),
}
CONFIGURATION: Final = """\
[mutmut]
source_paths=
    src
only_mutate=
    {files}
pytest_add_cli_args_test_selection=
    {tests}
pytest_add_cli_args=
    -p
    no:cacheprovider
    -n
    0
also_copy=
    pytest.ini
track_dependencies=false
use_git_change_detection=false
"""
KILLED: Final = ("killed", "timeout")
SURVIVED: Final = "survived"
UNREACHED: Final = "no tests"
EQUIVALENTS: Final = Path(__file__).with_name("equivalent_mutants.toml")


class Mutant(NamedTuple):
    """One change: mutmut's name for it, what became of it, the lines that went and came."""

    name: str
    ended: str
    change: str
    why: str | None = None  # it is none: the changed code does the same

    @property
    def function(self) -> str:
        """The function that was changed."""
        mangled = self.name.rpartition(".")[2].partition("__mutmut_")[0]
        return mangled.removeprefix("xǁ").replace("ǁ", ".") if "ǁ" in mangled else mangled.removeprefix("x_")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print the table."""
    given = _arguments(arguments)
    folder = Path(given.into or tempfile.mkdtemp(prefix="semel-mutate-")).resolve()
    if not given.only_report:
        _prepare(folder, given.files, given.only_tests)
        sys.stdout.write(f"mutating a copy in {folder}\n")
        sys.stdout.flush()
        chosen = []
        if given.again:
            chosen = [one.name for file in given.files for one in _mutants(folder, file) if one.ended not in KILLED]
        if chosen or not given.again:
            _run(folder, given.jobs, chosen)
    found = {file: _mark_equivalents(file, _mutants(folder, file)) for file in given.files}
    least = _report(found, given.least)
    for file, mutants in found.items():
        for one in mutants:
            if one.ended not in KILLED:
                sys.stdout.write(f"\n{file}: {one.function}: {one.why or one.ended} ({one.name})\n{one.change}\n")
    stale = _stale(found)
    for line in stale:
        sys.stdout.write(f"{line}\n")
    return 0 if least and not stale else 1


def _run(folder: Path, jobs: int, names: Sequence[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": "", "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis")}
    for name in [name for name in environment if name.startswith(("COV_", "COVERAGE_", "PYTEST_"))]:
        del environment[name]  # coverage and tests of this script must not see the changed copies
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(jobs), *names]
    with open(folder / "mutmut.log", "wb") as log:
        ended = subprocess.run(command, cwd=folder, env=environment, check=False, stdout=log, stderr=subprocess.STDOUT)  # noqa: S603 - our own command
    if ended.returncode:
        raise SystemExit(f"mutmut ended with {ended.returncode} before it was done; {folder / 'mutmut.log'} says why")


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "mutate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", help="room/module of the rules (default: all)")
    parser.add_argument("--into", help="a folder to work in, kept")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--least", type=float, default=90.0, help="the score in %% that is enough (90)")
    parser.add_argument("--again", action="store_true", help="run what survived in --into, with the tests of now")
    parser.add_argument("--only-tests", nargs="+", default=[], metavar="FILE", help="only these of tests/rules")
    parser.add_argument("--only-report", action="store_true", help="report what --into holds, run nothing")
    given = parser.parse_args(arguments)
    given.files = given.files or list(FILES)
    known = (*FILES, *BEYOND)
    unknown = sorted(set(given.files) - set(known))
    if unknown:
        parser.error(f"no such file of the core: {', '.join(unknown)}; there are {', '.join(known)}")
    if (given.only_report or given.again) and not given.into:
        parser.error("--only-report and --again need --into: the folder of an earlier run")
    return given


def _prepare(folder: Path, files: Sequence[str], tests: Sequence[str]) -> None:
    """A copy of the sources and of the tests that are run, with its own configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    beyond = any(file in BEYOND for file in files)
    shutil.rmtree(folder / "tests", ignore_errors=True)
    for part in ("src/semel", "tests" if beyond else TESTS):
        shutil.rmtree(folder / part, ignore_errors=True)
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "test_mutation.py"))
    shutil.rmtree(folder / "mutants" / "tests", ignore_errors=True)  # mutmut copies them anew, and takes none away
    (folder / "tests" / "__init__.py").touch()
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = --strict-markers -p no:asyncio\n", "utf-8")
    only = "\n    ".join(f"src/semel/{file}.py" for file in files)
    own = list(dict.fromkeys(name for file in files for name in BEYOND.get(file, (TESTS,))))
    chosen = "\n    ".join([f"{TESTS}/{name}" for name in tests] or own)
    (folder / "setup.cfg").write_text(CONFIGURATION.format(files=only, tests=chosen), "utf-8")


def _mutants(folder: Path, file: str) -> list[Mutant]:
    """What became of each mutant of a file."""
    from mutmut.stats import status_by_exit_code

    path = folder / "mutants" / "src" / "semel" / f"{file}.py"
    if not path.with_suffix(".py.meta").exists():
        return []
    codes = json.loads(path.with_suffix(".py.meta").read_text("utf-8"))["exit_code_by_key"]
    text = path.read_text("utf-8")
    lines = text.splitlines()
    functions = {
        node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno])
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and "__mutmut_" in node.name
    }
    return [Mutant(name, status_by_exit_code[code], _change(functions, name)) for name, code in codes.items()]


def _change(functions: Mapping[str, str], name: str) -> str:
    """The lines of a function that a mutant has not, and those that it has instead."""
    mutated = name.rpartition(".")[2]
    original = mutated.partition("__mutmut_")[0] + "__mutmut_orig"
    before, after = (functions.get(one, "").replace(one, "").splitlines() for one in (original, mutated))
    lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    return "\n".join(f"{line[0]} {line[1:].strip()}" for line in lines if not line.startswith("@@"))


# --- what is no mutant -----------------------------------------------------------------------------


def _equivalents() -> list[dict[str, str]]:
    return list(tomllib.loads(EQUIVALENTS.read_text("utf-8"))["equivalent"])


def _mark_equivalents(file: str, mutants: Sequence[Mutant]) -> list[Mutant]:
    """The same, and of each survivor that is known to do the same, why."""
    known = {(one["function"], one["change"].strip()): one["why"] for one in _equivalents() if one["file"] == file}
    return [
        one._replace(why=known.get((one.function, one.change))) if one.ended not in KILLED else one for one in mutants
    ]


def _stale(found: Mapping[str, Sequence[Mutant]]) -> list[str]:
    """Entries whose mutant is killed by now, or is not made any more."""
    needed = {(file, one.function, one.change) for file, mutants in found.items() for one in mutants if one.why}
    return [
        f"{EQUIVALENTS.name}: no survivor of {one['file']}.py is this; take it out: {one['function']}: {one['change']}"
        for one in _equivalents()
        if found.get(one["file"]) and (one["file"], one["function"], one["change"].strip()) not in needed
    ]


# --- the table -------------------------------------------------------------------------------------


def _report(found: Mapping[str, Sequence[Mutant]], least: float) -> bool:
    """Print one line a file and the sum; whether the sum is enough."""
    total: Counter[str] = Counter()
    sys.stdout.write(
        f"{'file':<34}{'mutants':>8}{'killed':>8}{'survived':>9}{'equivalent':>11}{'no test':>8}{'other':>7}"
        f"{'score':>8}{'without equivalents':>21}\n"
    )
    for file, mutants in found.items():
        counts = Counter(_column(one) for one in mutants)
        total += counts
        sys.stdout.write(_line(file, counts))
    sys.stdout.write(_line("all", total))
    return bool(total) and _score(total, total.total()) >= least


def _column(one: Mutant) -> str:
    if one.why:
        return "equivalent"
    return "killed" if one.ended in KILLED else one.ended if one.ended in (SURVIVED, UNREACHED) else "other"


def _score(counts: Counter[str], of: int) -> float:
    return 100 * counts["killed"] / max(1, of)


def _line(name: str, counts: Counter[str]) -> str:
    every = counts.total()
    return (
        f"{name:<34}{every:>8}{counts['killed']:>8}{counts[SURVIVED]:>9}{counts['equivalent']:>11}"
        f"{counts[UNREACHED]:>8}{counts['other']:>7}{_score(counts, every):>7.1f}%"
        f"{_score(counts, every - counts['equivalent']):>20.1f}%\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
