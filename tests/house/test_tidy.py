"""The habits of the house that a machine can check: names, docstrings, honest tests, locked requirements.

Like the layers, each rule is a function that is also shown something it must refuse.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.sources import ROOT, SRC, files

NAMELESS = {"common", "helper", "helpers", "manager", "managers", "util", "utils"}

# Spelled apart, so that this file keeps its own rules.
POSTPONED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME)\b")
HIDDEN_FROM_COVERAGE = re.compile(r"pragma:\s*no " + r"(cover|branch)")

PYTHON = [path for name in ("src", "verification", "tests", "bench") for path in files(ROOT / name, ".py")]
TESTS = files(ROOT / "tests", ".py")
REQUIREMENTS = files(ROOT / "requirements")


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def place(path: Path, line: int = 1) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_the_files_were_found() -> None:
    assert SRC / "semel" / "errors.py" in PYTHON
    assert Path(__file__) in TESTS
    assert {path.name for path in REQUIREMENTS} == {"run.in", "run.txt", "dev.in", "dev.txt"}


# --- names ---


def test_a_module_has_a_telling_name() -> None:
    assert [place(path) for path in PYTHON if NAMELESS & {path.stem, path.parent.name}] == []


# --- what is written down ---


def test_every_module_has_a_docstring() -> None:
    found = [
        place(path)
        for path in PYTHON
        if not ast.get_docstring(tree(path))
        and not (path.name == "__init__.py" and not path.read_text("utf-8").strip())
    ]
    assert found == []


@pytest.mark.parametrize("words", [POSTPONED, HIDDEN_FROM_COVERAGE], ids=["postponed", "hidden-from-coverage"])
def test_no_file_contains_words_that(words: re.Pattern[str]) -> None:
    found = [
        place(path, number)
        for path in {*PYTHON, *files(SRC)}
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), start=1)
        if words.search(line)
    ]
    assert found == []


def test_the_words_are_recognised() -> None:
    assert POSTPONED.search("# TO" + "DO: later")
    assert HIDDEN_FROM_COVERAGE.search("x = 1  # pragma: no " + "cover")


def test_all_of_semel_is_what_it_exports() -> None:
    semel = importlib.import_module("semel")
    declared: list[str] = list(getattr(semel, "__all__", []))

    assert len(declared) == len(set(declared))
    assert {name for name in declared if not name.startswith("_")} == exported_names(
        (SRC / "semel/__init__.py").read_text()
    )
    assert set(declared) <= set(dir(semel))
    assert [name for name in declared if not hasattr(semel, name)] == []  # a lazy name leads somewhere


def exported_names(text: str) -> set[str]:
    """The public names that a type checker sees in the root: what it defines, and what it takes from its modules."""
    names: set[str] = set()
    for node in _statements(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == "semel"):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def _statements(node: ast.Module | ast.If) -> Iterator[ast.stmt]:
    """Those of the module level, also the ones under `if TYPE_CHECKING:`."""
    for child in [*node.body, *getattr(node, "orelse", [])]:
        if isinstance(child, ast.If):
            yield from _statements(child)
        else:
            yield child


def test_exported_names_are_found_where_a_lazy_root_puts_them() -> None:
    text = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from semel.errors import SemelError\n"
        "    from .engine.sync import Engine as Semel\n_LAZY = {}\nVERSION: str = ''\ndef __getattr__(name): ..."
    )
    assert exported_names(text) == {"SemelError", "Semel", "VERSION"}


# --- honest tests ---


def test_tests_neither_sleep_nor_skip() -> None:
    found = [f"{place(path, line)} {what}" for path in TESTS for line, what in evasions(path.read_text("utf-8"))]
    assert found == []


SLEEPS = {"time.sleep", "asyncio.sleep", "anyio.sleep"}
STEPS_ASIDE = {
    *("pytest.skip", "pytest.xfail", "pytest.importorskip"),
    *("pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail"),
    *("unittest.skip", "unittest.skipIf", "unittest.skipUnless", "unittest.expectedFailure", "unittest.SkipTest"),
}


def evasions(text: str) -> Iterator[tuple[int, str]]:
    """Sleeping (other than a bare turn of the loop), skipping, and expecting to fail; also under another name."""
    nodes = list(ast.walk(ast.parse(text)))
    names = {
        alias.asname or alias.name: f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    forbidden = {name.partition(".")[0] for name in STEPS_ASIDE | SLEEPS}
    roots = forbidden | {name for name, meant in names.items() if meant.partition(".")[0] in forbidden}
    turns = {node.func for node in nodes if isinstance(node, ast.Call) and _is_turn_of_the_loop(node)}
    for node in nodes:
        if isinstance(node, ast.Attribute | ast.Name) and _root(node) in roots:
            first, _, rest = ast.unparse(node).partition(".")
            meant = ".".join(filter(None, [names.get(first, first), rest]))
            if meant in STEPS_ASIDE or (meant in SLEEPS and (node not in turns or meant == "time.sleep")):
                yield node.lineno, meant


def _root(node: ast.expr) -> str | None:
    """The name with which a dotted name begins."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_turn_of_the_loop(call: ast.Call) -> bool:
    match call.args:
        case [ast.Constant(value=0)]:
            return True
        case _:
            return False


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.sleep(0)",
        "import time as t\nt.sleep(1)",
        "from asyncio import sleep\nasync def f(): await sleep(0.1)",
        "import asyncio\nasync def f(): await asyncio.sleep(delay)",
        "import asyncio\nnap = asyncio.sleep",
        "import pytest\npytest.skip('no')",
        "import pytest\n@pytest.mark.skipif(True, reason='no')\ndef test(): ...",
        "import pytest\n@pytest.mark.xfail\ndef test(): ...",
        "from pytest import mark\n@mark.skip\ndef test(): ...",
        "from pytest import importorskip as need\nneed('redis')",
    ],
)
def test_a_sleep_or_a_skip_in_a_test_is_reported(text: str) -> None:
    assert list(evasions(text))


def test_a_sleep_of_zero_is_allowed_in_tests() -> None:
    assert list(evasions("import asyncio\nasync def f(): await asyncio.sleep(0)\nskip = sleep = 1\nskip + sleep")) == []


# --- requirements ---


def test_requirements_name_no_download_url() -> None:
    address = re.compile(r"://|--(extra-)?index-url|--find-links|^-[if]\s")
    found = [
        place(path, number)
        for path in REQUIREMENTS
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if address.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("name", ["run.txt", "dev.txt"])
def test_every_locked_package_has_a_version_and_a_hash(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text("utf-8")
    packages = re.findall(r"^[^\s#].*(?:\n +--hash.*)*", text, flags=re.MULTILINE)
    assert len(packages) > 10
    assert [package for package in packages if "==" not in package or "--hash=sha256:" not in package] == []


@pytest.mark.parametrize("name", ["run.in", "dev.in"])
def test_every_direct_dependency_states_why_it_was_chosen(name: str) -> None:
    lines = (ROOT / "requirements" / name).read_text("utf-8").splitlines()
    chosen = [number for number, line in enumerate(lines) if line and not line.startswith(("#", "-r"))]
    assert chosen
    assert [lines[number] for number in chosen if not lines[number - 1].startswith("# ")] == []


def test_both_locks_agree() -> None:
    """`make test` adds to the environment of `make run`; it must not change it."""
    run, dev = (
        set(re.findall(r"^\S+==\S+", (ROOT / "requirements" / name).read_text("utf-8"), flags=re.MULTILINE))
        for name in ("run.txt", "dev.txt")
    )
    assert run - dev == set()
