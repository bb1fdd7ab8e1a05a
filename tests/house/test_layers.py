"""The rings of the design, enforced: imports point to the same or a lower ring, the lower rings stay pure.

Every rule is one function from modules to complaints. It is applied to the source tree, and to a small text that breaks
it, so that a rule which has stopped biting is noticed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.house.sources import Module, Where, imports, is_import_call, literal_import, parse, semel_modules

Modules = Mapping[str, Module]
Rule = Callable[[Modules], Iterator[str]]

RINGS = {
    **dict.fromkeys(["errors", "events", "model", "policy", "telemetry"], 0),
    **dict.fromkeys(["rules"], 1),
    **dict.fromkeys(["flow", "stores", "protocol"], 2),
    **dict.fromkeys(["drivers", "engine"], 3),
    **dict.fromkeys(["web", "integrations", "functions", "client", "worker", "imports", "service", "cli"], 4),
}

# Imports to a higher ring that were discussed and kept, each with its reason. An entry that is no longer used fails.
UPWARD_ALLOWED = {
    # A policy holds the operation's recipe and key format. These are values, but they live beside the pure functions
    # that interpret them, and splitting them off would give each noun two files.
    ("semel.policy", "semel.rules.fingerprint"),
    ("semel.policy", "semel.rules.keys"),
    ("semel.policy", "semel.rules.headers"),
    ("semel.policy", "semel.rules.references"),  # likewise where a key or a business reference comes from
    ("semel.policy", "semel.rules.step_options"),  # likewise what goes together with steps
    # The results of steps are written as those of functions are. These forms do no IO and know nothing of what is above
    # them; they are loaded with the first permit whose operation declares steps.
    ("semel.engine.steps", "semel.functions.annotations"),
    ("semel.engine.steps", "semel.functions.results"),
    ("semel.engine.steps", "semel.functions.scalars"),
    ("semel.engine.steps", "semel.functions.shapes"),
}

# The client library that a driver wraps: the only third-party code below ring 4.
DRIVER_LIBRARIES = {
    "semel.drivers.asyncmy": "asyncmy",
    "semel.drivers.asyncmy_unit": "asyncmy",
    "semel.drivers.pymysql": "pymysql",
    "semel.drivers.pymysql_unit": "pymysql",
    "semel.drivers.asyncpg": "asyncpg",
    "semel.drivers.asyncpg_unit": "asyncpg",
    "semel.drivers.libpq": "psycopg",
    "semel.drivers.psycopg": "psycopg",
    "semel.drivers.psycopg_arrays": "psycopg",
    "semel.drivers.psycopg_join": "psycopg",
    "semel.drivers.sqlalchemy_postgres": "sqlalchemy",
    "semel.drivers.asyncpg_join": "asyncpg",
    "semel.drivers.django": "django",
    "semel.drivers.django_postgres": "psycopg",
    "semel.drivers.postgres_joining": "psycopg",
    "semel.drivers.postgres_bell": "psycopg",
    "semel.drivers.psycopg_patience": "psycopg",
    "semel.drivers.psycopg_unit": "psycopg",
    "semel.drivers.psycopg_trip": "psycopg",
    "semel.drivers.psycopg_unit_async": "psycopg",
    "semel.drivers.redis_connections": "redis",
    "semel.drivers.redis_errors": "redis",
    "semel.drivers.redis_streams": "redis",
    "semel.drivers.sealing": "cryptography",
    "semel.drivers.sqlalchemy": "sqlalchemy",
    "semel.drivers.sqlalchemy_async": "sqlalchemy",
}
ACCELERATORS = {"hiredis", "orjson"}

DATABASE_CLIENTS = {
    *("aiomysql", "aiosqlite", "asyncmy", "asyncpg", "django.db", "mysql", "MySQLdb", "psycopg", "psycopg2"),
    *("psycopg_pool", "pymysql", "redis", "sqlalchemy", "sqlite3", "valkey"),
}
OUTSIDE_WORLD = {
    *("asyncio", "concurrent", "logging", "multiprocessing", "random", "secrets", "signal", "socket", "subprocess"),
    *("threading", "time"),
}
IMPURE = {"semel.rules": OUTSIDE_WORLD | {"os", "tempfile"}} | dict.fromkeys(
    ["semel.flow", "semel.stores", "semel.protocol", "semel.client.plan"], OUTSIDE_WORLD
)


def ring(name: str) -> int | None:
    """The ring of a module; None for the root, for testing, and for what nobody has placed."""
    parts = name.split(".")
    return RINGS.get(parts[1]) if parts[0] == "semel" and len(parts) > 1 else None


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def every_module_has_a_place(modules: Modules) -> Iterator[str]:
    for name in modules:
        if ring(name) is None and name != "semel" and not within(name, "semel.testing"):
            yield f"{name} is in no ring: place it in RINGS"


def imports_point_down(modules: Modules) -> Iterator[str]:
    """The root re-exports lazily and is exempt; importing it from below ring 4 would reach every ring through it."""
    for module in modules.values():
        importer = ring(module.name)
        if importer is None:
            continue
        for found in imports(module, modules):
            if any(found.importer == source and within(found.target, target) for source, target in UPWARD_ALLOWED):
                continue
            imported = 4 if found.target == "semel" else ring(found.target)
            if imported is not None and imported > importer:
                yield f"{found}: ring {importer} may not see ring {imported}"


def upward_imports_are_used(modules: Modules) -> Iterator[str]:
    used = {(found.importer, found.target) for module in modules.values() for found in imports(module, modules)}
    for importer, target in UPWARD_ALLOWED - used:
        if importer in modules and target in modules:
            yield f"{importer} no longer imports {target}: remove it from UPWARD_ALLOWED"


def nothing_imports_testing(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        if not within(module.name, "semel.testing"):
            yield from (str(found) for found in imports(module, modules) if within(found.target, "semel.testing"))


def no_cycles(modules: Modules) -> Iterator[str]:
    graph = {
        module.name: {
            found.target
            for found in imports(module, modules)
            if found.where is Where.MODULE and found.target in modules and found.target != module.name
        }
        for module in modules.values()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield " imports ".join(reversed(error.args[1]))


# The client's journal is a file of its own and no store: it shares neither tables nor connections with one.
JOURNAL = "semel.client.journal"


def databases_are_reached_through_drivers(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        if not any(within(module.name, home) for home in ("semel.drivers", "semel.testing", JOURNAL)):
            for found in imports(module, modules):
                if any(within(found.target, client) for client in DATABASE_CLIENTS):
                    yield str(found)


def lower_rings_do_not_touch_the_world(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        banned = {name for package, names in IMPURE.items() if within(module.name, package) for name in names}
        for found in imports(module, modules):
            if any(within(found.target, name) for name in banned):
                yield str(found)


def lower_rings_are_not_async(modules: Modules) -> Iterator[str]:
    """A protocol may declare an async method (its body is `...`): that describes a driver and runs nothing."""
    for module, node in _nodes_below_ring_3(modules):
        declared = isinstance(node, ast.AsyncFunctionDef) and ast.unparse(node.body[-1]) == "..."
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith) and not declared:
            yield f"{module.name}:{node.lineno} is async"


def lower_rings_import_by_name(modules: Modules) -> Iterator[str]:
    """An import by a computed name would pass all the other rules. One by a literal name is seen by them."""
    for module, node in _nodes_below_ring_3(modules):
        if is_import_call(node) and literal_import(node) is None:
            yield f"{module.name}:{node.lineno} imports by a computed name"


def _nodes_below_ring_3(modules: Modules) -> Iterator[tuple[Module, ast.AST]]:
    for module in modules.values():
        if (ring(module.name) or 0) < 3 and ring(module.name) is not None:
            yield from ((module, node) for node in ast.walk(module.tree))


def core_is_standard_library_only(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        if module.name != "semel" and ring(module.name) not in (0, 1, 2, 3):
            continue
        for found in imports(module, modules):
            library = found.target.split(".")[0]
            lazily = found.where is Where.FUNCTION and library in ACCELERATORS
            own = DRIVER_LIBRARIES.get(module.name) == library
            if library != "semel" and library not in sys.stdlib_module_names and not lazily and not own:
                yield str(found)


# Each rule, with the smallest trees that break it.
BREACHES: dict[Rule, list[dict[str, str]]] = {
    every_module_has_a_place: [{"semel/misc.py": ""}, {"semel/misc/__init__.py": ""}],
    imports_point_down: [
        {"semel/errors.py": "from semel.rules import keys", "semel/rules/keys.py": ""},
        {"semel/rules/keys.py": "def f():\n    import semel.flow", "semel/flow.py": ""},
        {"semel/stores/base.py": "from ..engine import sync", "semel/engine/sync.py": ""},
        {"semel/engine/sync.py": "import typing\nif typing.TYPE_CHECKING:\n    from semel import web"}
        | {"semel/web/__init__.py": ""},
        {"semel/drivers/base.py": "from semel import Engine", "semel/__init__.py": "Engine = 1"},
        {"semel/policy.py": "from semel.rules.decide import decide", "semel/rules/decide.py": ""},
    ],
    upward_imports_are_used: [{"semel/policy.py": "", "semel/rules/keys.py": ""}],
    nothing_imports_testing: [
        {"semel/cli/main.py": "def f():\n    from semel.testing import faults", "semel/testing/faults.py": ""},
        {"semel/__init__.py": "from . import testing", "semel/testing/__init__.py": ""},
    ],
    no_cycles: [
        {"semel/model.py": "from semel.policy import P", "semel/policy.py": "import semel.model"},
        {
            "semel/web/asgi.py": "try:\n    from .capture import C\nexcept ImportError:\n    pass",
            "semel/web/capture.py": "from semel.web.problem import P",
            "semel/web/problem.py": "from semel.web import asgi",
        },
    ],
    databases_are_reached_through_drivers: [
        {"semel/service/app.py": "import sqlite3"},
        {"semel/engine/connect.py": "def f():\n    from sqlalchemy.orm import Session"},
        {"semel/integrations/django.py": "from django import db"},
    ],
    lower_rings_do_not_touch_the_world: [
        {"semel/rules/lease.py": "from time import time"},
        {"semel/rules/keys.py": "import os.path"},
        {"semel/stores/memory.py": "def f():\n    import threading"},
        {"semel/flow.py": "import asyncio"},
        {"semel/rules/backoff.py": "from importlib import import_module\nf = lambda: import_module('random')"},
    ],
    lower_rings_are_not_async: [
        {"semel/model.py": "async def f() -> None: pass"},
        {"semel/protocol/commands.py": "class C:\n    async def f(self) -> None:\n        return 1"},
    ],
    lower_rings_import_by_name: [
        {"semel/rules/keys.py": "import importlib\nimportlib.import_module('ti' + 'me')"},
        {"semel/stores/base.py": "__import__(name)"},
    ],
    core_is_standard_library_only: [
        {"semel/engine/sync.py": "import httpx"},
        {"semel/rules/canonical.py": "try:\n    import orjson\nexcept ImportError:\n    pass"},
        {"semel/rules/canonical.py": "def f():\n    import simplejson"},
        {"semel/rules/canonical.py": "import importlib\norjson = importlib.import_module('orjson')"},
        {"semel/drivers/sqlite.py": "from sqlalchemy import text"},
        {"semel/__init__.py": "import orjson"},
    ],
}

# What looks like a breach and is none: the rules must not push anybody into contortions.
ALLOWED = [
    {"semel/engine/sync.py": "from semel.web_ import x\nimport time, threading, asyncio"},
    {"semel/policy.py": "from semel.rules.keys import KeyFormat", "semel/rules/keys.py": ""},
    {"semel/rules/canonical.py": "def f():\n    import orjson"},
    {"semel/rules/canonical.py": "import importlib\ndef f():\n    importlib.import_module('orjson')"},
    {"semel/flow.py": "class Driver(Protocol):\n    async def run(self) -> int: ..."},
    {"semel/drivers/sqlalchemy.py": "import sqlalchemy", "semel/drivers/sqlite.py": "import sqlite3"},
    {"semel/service/app.py": "import semel\nfrom fastapi import FastAPI", "semel/__init__.py": ""},
    {"semel/__init__.py": "def __getattr__(name):\n    from semel.engine import sync", "semel/engine/sync.py": ""},
    {"semel/model.py": "def f():\n    import semel.policy", "semel/policy.py": "import semel.model"},
    {"semel/rules/__init__.py": "from .keys import K", "semel/rules/keys.py": "from semel.rules import lease"}
    | {"semel/rules/lease.py": ""},
    {"semel/testing/races.py": "import sqlite3, hypothesis\nfrom semel.cli import main", "semel/cli/main.py": ""},
]


@pytest.mark.parametrize("rule", BREACHES, ids=lambda rule: rule.__name__)
def test_the_source_keeps(rule: Rule) -> None:
    modules = semel_modules()
    assert "semel.errors" in modules  # the tree was found
    assert list(rule(modules)) == []


@pytest.mark.parametrize("rule", BREACHES, ids=lambda rule: rule.__name__)
def test_a_breach_is_seen_by(rule: Rule) -> None:
    for texts in BREACHES[rule]:
        assert list(rule(parse(texts))), texts


@pytest.mark.parametrize("texts", ALLOWED, ids=lambda texts: " ".join(texts))
def test_no_rule_complains_about(texts: dict[str, str]) -> None:
    assert [complaint for rule in BREACHES for complaint in rule(parse(texts))] == []


def test_an_import_is_named_by_the_module_it_reaches() -> None:
    text = "from . import keys\nfrom ..errors import InvalidKey\nfrom time import time\nimport semel.model"
    texts = {"semel/rules/a.py": text, "semel/rules/keys.py": "", "semel/errors.py": "", "semel/model.py": ""}
    modules = parse(texts)
    targets = [found.target for found in imports(modules["semel.rules.a"], modules)]
    assert targets == ["semel.rules.keys", "semel.errors", "time.time", "semel.model"]
