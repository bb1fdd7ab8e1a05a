"""The mutation run that CI can afford: one small file of the rules, changed for real, and the tests that must notice.

The whole takes half an hour (``make mutate``); what it found last is in docs/internals/proof.md.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "mutate.py"
EQUIVALENTS = ROOT / "scripts" / "equivalent_mutants.toml"


def mutate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_change_of_the_pauses_is_noticed(tmp_path: Path) -> None:
    ended = mutate(
        "core/backoff", "--only-tests", "test_lease.py", "--jobs", "1", "--least", "100", "--into", str(tmp_path)
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    [line] = [line for line in ended.stdout.splitlines() if line.startswith("core/backoff ")]
    _, mutants, killed, survived, *_ = line.split()
    assert int(mutants) == int(killed) >= 25
    assert int(survived) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "no such file of the core: nothing; there are core/decide, core/settle"),
        (["--again"], "need --into: the folder of an earlier run"),
        (["--only-report"], "need --into: the folder of an earlier run"),
    ],
)
def test_impossible_arguments_are_reported(arguments: list[str], said: str) -> None:
    ended = mutate(*arguments)
    assert ended.returncode == 2
    assert said in ended.stderr


def test_the_tests_of_the_rules_read_no_file_that_the_copy_has_not() -> None:
    """It has the sources and these tests; one that fails there ends the run before the first change."""
    here = Path(__file__)
    found = [file.name for file in here.parent.glob("*.py") if file != here and "__file__" in file.read_text("utf-8")]
    assert found == []


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every function of a module and its node, those of a class by ``Class.function``."""
    for node in ast.iter_child_nodes(tree):
        name = f"{within}{getattr(node, 'name', '')}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node
        yield from functions(node, f"{name}." if isinstance(node, ast.ClassDef) else within)


def test_each_equivalent_change_refers_to_existing_code() -> None:
    """``make mutate`` says so as well, after half an hour: until then the entry would hide nothing and look as if."""
    lost = []
    for entry in tomllib.loads(EQUIVALENTS.read_text("utf-8"))["equivalent"]:
        text = (ROOT / f"src/semel/{entry['file']}.py").read_text("utf-8")
        node = dict(functions(ast.parse(text))).get(entry["function"])
        source = "" if node is None else ast.get_source_segment(text, node) or ""
        lines = {line.strip() for line in source.splitlines()}
        lost += [
            f"{entry['file']}: {entry['function']}: {line}"
            for line in entry["change"].strip().splitlines()
            if line.startswith("- ") and line.removeprefix("- ") not in lines
        ]
    assert lost == []
