"""Tests that a page names: each must exist, or nothing is written."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from semel.testing import conformance

ROOT: Final = Path(__file__).resolve().parents[2]


def link_to(name: str) -> str:
    """Return a link to a test. Raises LookupError if there is no test of this name."""
    file, found, test = name.partition("::")
    if not found:
        case = conformance.CASES.get(name)
        if case is None:
            raise LookupError(f"the conformance suite has no case {name!r}")
        file, test = f"src/{case.__module__.replace('.', '/')}.py", name
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    if not any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == test for node in ast.walk(tree)
    ):
        raise LookupError(f"{file} has no test {test!r}")
    return f"[`{test}`](../{file})"
