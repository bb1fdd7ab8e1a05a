"""`semel.workers` names what applications run, and loads of it what they use."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import semel.workers
from tests.house.sources import SRC
from tests.house.test_tidy import exported_names

PROBE = """
import sys
import semel.reconciliation.worker  # a module of this name exists, and must not hide a name
from semel.workers import Reaper, reconciler
assert callable(reconciler), reconciler
print([name for name in sys.modules if name.startswith("semel.workers.") and "relay" in name or "sinks" in name])
"""


def test_all_of_the_workers_is_what_they_export() -> None:
    declared = semel.workers.__all__
    assert len(declared) == len(set(declared))
    assert set(declared) == exported_names((SRC / "semel/workers/__init__.py").read_text("utf-8"))
    assert dir(semel.workers) == declared
    assert [name for name in declared if not hasattr(semel.workers, name)] == []


def test_no_module_of_the_workers_has_the_name_of_an_export() -> None:
    """The import of a module sets its name in the package, over the name that was exported."""
    assert {path.stem for path in Path(SRC / "semel/workers").iterdir()} & set(semel.workers.__all__) == set()


def test_a_reaper_loads_no_relay() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", PROBE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_name_is_reported() -> None:
    with pytest.raises(AttributeError, match=r"semel\.worker.*Nothing"):
        _ = semel.workers.Nothing  # type: ignore[attr-defined]


def test_examples_import_no_name_of_these_from_elsewhere() -> None:
    """A user is shown one place for each name."""
    root = SRC.parent
    names = {*semel.workers.__all__, *importlib.import_module("semel").__all__}
    found = []
    for path in root.glob("examples/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module not in ("semel", "semel.workers", "semel.errors"):
                found += [
                    f"{path.name}: {node.module}.{alias.name}"
                    for alias in node.names
                    if (node.module or "").startswith("semel.") and alias.name in names
                ]
    assert found == []
