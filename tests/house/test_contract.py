"""A store's contract declares what it can do: no code asks for its class, its database's name or a statement's.

A difference between databases is an attribute of the dialect, a statement in the dialect's own file, or a capability.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.house.sources import Module, parse, semel_modules

DATABASES = {"memory", "sqlite", "postgres", "postgresql", "mariadb", "mysql", "redis"}
STORES = {
    f"{name}{kind}" for name in ("Memory", "Sqlite", "Postgres", "Mariadb", "Redis") for kind in ("Store", "Driver")
}
STORES |= {"LocalDriver", "PsycopgDriver", "AsyncpgDriver"}
DIALECTS = {"SQLITE", "POSTGRES", "MARIADB"}

# Where such a switch is right, and why.
ALLOWED = {
    "semel.engine.runner": "a driver declares AnswersAtOnce by its methods, once for an engine",
    "semel.operations.tracking": "wraps a store, and hands on every verb that it does not change",
    "semel.stores.sql.dialect": "the one place that asks a store for its dialect",
    "semel.reference.app": "the reference service is on SQLite",
    "semel.reference.supervisor": "the reference service is on SQLite",
}
# SQLAlchemy and Django name the database of the user's connection: these modules join it.
FOREIGN = {"semel.stores.sql.sqlalchemy", "semel.stores.postgres.sqlalchemy"}


def switches(module: Module) -> Iterator[str]:
    """The places that ask which store, database or statement they have."""
    for node in ast.walk(module.tree):
        if (found := switch_of(node)) is not None:
            yield f"{module.name}:{getattr(node, 'lineno', 0)} {found}"


def switch_of(node: ast.AST) -> str | None:
    match node:
        case ast.Call(func=ast.Name(id="hasattr" | "getattr" as call), args=[subject, *_]) if _is_store(subject):
            return f"{call} of a store"
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]) if _names(kinds) & STORES:
            return "isinstance of a store or driver"
        case ast.MatchClass(cls=kind) if _names(kind) & STORES:
            return "match on a store or driver"
        case ast.Compare(ops=[ast.Is() | ast.IsNot() | ast.Eq() | ast.NotEq()], comparators=[right]):
            if _names(right) & DIALECTS or _names(node.left) & DIALECTS:
                return "comparison with a dialect"
            return _switch_between(node.left, right)
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[right]):
            return _switch_between(node.left, right)
        case ast.Call(func=ast.Attribute(attr="get"), args=[subject, *_]) if _is_name(subject):
            return "table by a database's name"
    return None


def _switch_between(left: ast.expr, right: ast.expr) -> str | None:
    if _is_name(left) or _is_name(right):
        return "comparison of a database's or a statement's name"
    return None


def _is_name(node: ast.expr) -> bool:
    """Whether this is the name of a dialect, a backend or a statement."""
    match node:
        case ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr="name"):
            return owner.strip("_") in {"dialect", "backend", "statement"}
        case _:
            return False


def _is_store(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_") in {"store", "driver", "backend"}
        case _:
            return False


def _names(node: ast.expr) -> set[str]:
    return {
        below.id if isinstance(below, ast.Name) else below.attr
        for below in ast.walk(node)
        if isinstance(below, ast.Name | ast.Attribute)
    }


def test_only_listed_modules_switch_on_the_store() -> None:
    found = [
        switch
        for module in semel_modules().values()
        if module.name not in ALLOWED | dict.fromkeys(FOREIGN) and not module.name.startswith("semel.testing")
        for switch in switches(module)
    ]
    assert found == []


def test_every_listed_module_still_has_a_switch() -> None:
    modules = semel_modules()
    listed = [*ALLOWED, *FOREIGN]
    assert [name for name in listed if not list(switches(modules[name]))] == []


@pytest.mark.parametrize(
    "text",
    [
        "hasattr(engine.store, 'lacking')",
        "getattr(backend.driver, 'path', None)",
        "isinstance(store, RedisStore)",
        "self._dialect is SQLITE",
        "dialect is not postgres.POSTGRES",
        "self._dialect.name == 'mariadb'",
        "backend.name in ('sqlite', 'memory')",
        "needed.statement.name == 'claim_in_unit'",
        "_FOLDERS.get(engine.backend.name)",
        "match store:\n    case PostgresStore():\n        pass",
    ],
)
def test_a_switch_is_recognised(text: str) -> None:
    [module] = parse({"semel/x.py": text}).values()
    assert len(list(switches(module))) == 1


@pytest.mark.parametrize(
    "text", ["isinstance(store, Observable)", "store.capabilities.holds_features", "f'{dialect.name}.sql'"]
)
def test_a_branch_on_the_contract_is_not_a_switch(text: str) -> None:
    [module] = parse({"semel/x.py": text}).values()
    assert list(switches(module)) == []
