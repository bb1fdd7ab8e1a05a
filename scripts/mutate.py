"""Mutation testing of the core rules: how many small changes of `src/semel/rules` do the tests of the rules notice?

    python scripts/mutate.py                       all files of the core, in a new temporary folder
    python scripts/mutate.py decide settle         only these
    python scripts/mutate.py --into build/mutate   keep the folder, and take up there what was not finished
    python scripts/mutate.py --show                also the survivors' diffs

mutmut makes the changes and knows which tests reach which function; ours would need a syntax tree with formatting and a
process for each change. It is configured here and works on a copy, so that nothing of it lies in the checkout. Needs
`pip install mutmut`; it can be stopped and started again. Exit code 1: the score is below --least.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FILES: Final = (
    *("decide", "settle", "classify", "lease", "identity", "stored"),
    *("keys", "backoff", "recipe", "canonical", "fingerprint", "multipart"),
)
# Tests that take long for what they notice: random comparisons of thousands of documents. The directed ones remain.
TESTS: Final = ("tests/rules",)
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
KILLED: Final = "killed"
SURVIVED: Final = "survived"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print the table."""
    given = _arguments(arguments)
    folder = Path(given.into or tempfile.mkdtemp(prefix="semel-mutate-")).resolve()
    _prepare(folder, given.files)
    sys.stdout.write(f"mutating a copy in {folder}\n")
    sys.stdout.flush()
    environment = {**os.environ, "PYTHONPATH": "", "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis")}
    if not given.only_report:
        command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(given.jobs)]
        with open(folder / "mutmut.log", "wb") as log:
            subprocess.run(command, cwd=folder, env=environment, check=False, stdout=log, stderr=subprocess.STDOUT)  # noqa: S603 - our own command
    found = {file: _results(folder, file) for file in given.files}
    least = _report(found, given.least)
    for names in found.values():
        for name in sorted(name for name, how in names.items() if how not in (KILLED, "timeout")):
            sys.stdout.write(f"\n{names[name]}: {name}\n")
            if given.show:
                sys.stdout.flush()
                subprocess.run([sys.executable, "-m", "mutmut", "show", name], cwd=folder, env=environment, check=False)  # noqa: S603
    return 0 if least else 1


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "mutate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", help="names of modules in semel/rules (default: the whole core)")
    parser.add_argument("--into", help="a folder to work in, kept")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--least", type=float, default=90.0, help="the score in %% that is enough (90)")
    parser.add_argument("--show", action="store_true", help="print the survivors' diffs")
    parser.add_argument("--only-report", action="store_true", help="report what --into holds, run nothing")
    given = parser.parse_args(arguments)
    given.files = given.files or list(FILES)
    unknown = sorted(set(given.files) - set(FILES))
    if unknown:
        parser.error(f"no such file of the core: {', '.join(unknown)}; there are {', '.join(FILES)}")
    if given.only_report and not given.into:
        parser.error("--only-report needs --into: the folder of an earlier run")
    return given


def _prepare(folder: Path, files: Sequence[str]) -> None:
    """A copy of the sources and of the rules' tests, with a configuration of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("src/semel", *TESTS):
        shutil.rmtree(folder / part, ignore_errors=True)
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests" / "__init__.py").touch()
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = --strict-markers\n", "utf-8")
    only = "\n    ".join(f"src/semel/rules/{file}.py" for file in files)
    tests = "\n    ".join(TESTS)
    (folder / "setup.cfg").write_text(CONFIGURATION.format(files=only, tests=tests), "utf-8")


def _results(folder: Path, file: str) -> Mapping[str, str]:
    """What became of each mutant of a file."""
    from mutmut.stats import status_by_exit_code

    path = folder / "mutants" / "src" / "semel" / "rules" / f"{file}.py.meta"
    if not path.exists():
        return {}
    codes = json.loads(path.read_text("utf-8"))["exit_code_by_key"]
    return {name: status_by_exit_code[code] for name, code in codes.items()}


def _report(found: Mapping[str, Mapping[str, str]], least: float) -> bool:
    """Print one line a file and the sum; whether the sum is enough."""
    total: Counter[str] = Counter()
    sys.stdout.write(f"{'file':<14}{'mutants':>8}{'killed':>8}{'timeout':>8}{'survived':>9}{'other':>7}{'score':>8}\n")
    for file, names in found.items():
        counts = Counter(names.values())
        total += counts
        sys.stdout.write(_line(file, counts))
    sys.stdout.write(_line("all", total))
    return bool(total) and _score(total) >= least


def _score(counts: Counter[str]) -> float:
    return 100 * (counts[KILLED] + counts["timeout"]) / max(1, counts.total())


def _line(name: str, counts: Counter[str]) -> str:
    other = counts.total() - counts[KILLED] - counts["timeout"] - counts[SURVIVED]
    return (
        f"{name:<14}{counts.total():>8}{counts[KILLED]:>8}{counts['timeout']:>8}{counts[SURVIVED]:>9}{other:>7}"
        f"{_score(counts):>7.1f}%\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
