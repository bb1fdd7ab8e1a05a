"""The project's own files, read as text and syntax for the house rules. Nothing is imported or run here."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"


class Where(Enum):
    """When an import runs: that decides what it costs and which cycles it can close."""

    MODULE = "at module level"
    TYPING = "under TYPE_CHECKING"
    FUNCTION = "inside a function"


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, as precise as the text tells: a module of ours, or the dotted name of something foreign."""

    importer: str
    target: str
    line: int
    where: Where

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target} {self.where.value}"


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """One module under src/, by its dotted name."""

    name: str
    tree: ast.Module
    is_package: bool


def parse(texts: Mapping[str, str]) -> dict[str, Module]:
    """Modules from text by file name relative to src/, such as `semel/http/headers.py`."""
    modules = {}
    for file, text in texts.items():
        parts = Path(file).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules[name] = Module(name, ast.parse(text, file), is_package)
    return modules


@functools.cache
def semel_modules() -> Mapping[str, Module]:
    """All of ours, parsed once for all rules."""
    return parse({str(path.relative_to(SRC)): path.read_text("utf-8") for path in files(SRC, ".py")})


def files(directory: Path, *suffixes: str) -> list[Path]:
    """Every file below a directory, in a stable order; all of them when no suffix is given."""
    return sorted(
        path
        for path in directory.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and (not suffixes or path.suffix in suffixes)
    )


def imports(module: Module, known: Mapping[str, Module]) -> Iterator[Import]:
    for node, where in _found(module):
        for target in _targets(node, module, known):
            yield Import(module.name, target, node.lineno, where)


@functools.cache
def _found(module: Module) -> list[tuple[ast.Import | ast.ImportFrom | ast.Call, Where]]:
    return list(_import_nodes(module.tree, Where.MODULE))


def is_import_call(node: ast.AST) -> TypeGuard[ast.Call]:
    if not isinstance(node, ast.Call):
        return False
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in {"import_module", "__import__"}
        case _:
            return False


def literal_import(call: ast.Call) -> str | None:
    """The module that `import_module("name")` imports; None where the name is computed or relative."""
    match call.args:
        case [ast.Constant(value=str(name))] if not name.startswith("."):
            return name
        case _:
            return None


def _import_nodes(node: ast.AST, where: Where) -> Iterator[tuple[ast.Import | ast.ImportFrom | ast.Call, Where]]:
    if isinstance(node, ast.Import | ast.ImportFrom) or is_import_call(node):
        yield node, where
    elif isinstance(node, ast.If) and _is_type_checking(node.test):
        for child in node.body:
            yield from _import_nodes(child, Where.TYPING)
        for child in node.orelse:
            yield from _import_nodes(child, where)
    else:
        inner = Where.FUNCTION if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) else where
        for below in ast.iter_child_nodes(node):
            yield from _import_nodes(below, inner)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def _targets(
    node: ast.Import | ast.ImportFrom | ast.Call, module: Module, known: Mapping[str, Module]
) -> Iterator[str]:
    if isinstance(node, ast.Call):
        yield from filter(None, [literal_import(node)])
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    source = _absolute(node, module)
    for alias in node.names:
        name = f"{source}.{alias.name}"
        # `from semel.http import headers` names a module, `from semel.errors import KeyReused` something inside one.
        yield source if source in known and name not in known else name


def _absolute(node: ast.ImportFrom, module: Module) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    up = node.level - 1 if module.is_package else node.level
    return ".".join(parts[: len(parts) - up] + ([node.module] if node.module else []))
