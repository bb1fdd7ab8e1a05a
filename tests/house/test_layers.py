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

# The ring of a module is that of its file's name in its room, else of the name in any room, else of the room.
RINGS_OF_ROOMS: dict[str, int] = {
    "core": 1,
    "codec": 2,
    "stores": 3,
    "engine": 3,
    **dict.fromkeys(["atomic", "steps", "operations", "outbox", "inbox", "bulk", "reconciliation", "resuming"], 4),
    **dict.fromkeys(["sealing", "retention"], 4),
    **dict.fromkeys(["http", "functions", "integrations", "workers", "admin", "check", "cli", "reference"], 4),
    **dict.fromkeys(["client", "conform", "console", "exporters", "gateway", "imports", "proxy"], 4),
}
RINGS_OF_NAMES = {"rules": 1, "flow": 2, "store": 2, "run": 3, "http": 4, "worker": 4}
RINGS_IN_ROOMS: dict[str, dict[str, int]] = {
    "": {
        "errors": 0,
        "articles": 0,
        "extras": 0,
        "telemetry": 0,
        "addresses": 0,
        "lazy": 4,
        **dict.fromkeys(["keys", "policy", "quota", "recipe"], 1),
    },
    "core": {"model": 0, **dict.fromkeys(["contract", "requests", "command_flow"], 2)},
    "http": {"headers": 1, "fingerprint": 1},
    "stores": {"versions": 2, "findings": 2},
    "stores.sql": dict.fromkeys(
        ["damage", "statements", "dialect", "tables", "lapsed_scan", "looks", "versioned_store"], 2
    ),
    "stores.sqlite": {"doctor": 2},
    "stores.postgres": dict.fromkeys(["rows", "alike", "settings", "text", "doctor"], 2),
    "stores.mariadb": dict.fromkeys(["rows", "settings", "requests", "doctor"], 2),
    "stores.redis": dict.fromkeys(
        ["rows", "settings", "keys", "layout", "pages", "arguments", "remedies", "scripts", "doctor"], 2
    ),
    "atomic": {"own_transaction": 3},
    "steps": dict.fromkeys(["doubts", "findings", "options", "permit"], 1),
    "operations": {"references": 1, "tracking": 2},
    "sealing": {**dict.fromkeys(["redaction", "rows"], 1), **dict.fromkeys(["rebuild", "sealer"], 3)},
    "reconciliation": {"reported": 3, "resolutions": 1},
    "outbox": {"event": 0, "partitions": 2, "postgres_listen": 3},
    "telemetry": {"command_events": 3},
    "workers": {"rules": 2, "trouble": 3},
    "client": dict.fromkeys(["answers", "limits", "plan"], 2),
    "conform": {"run": 4},
    "imports": {"readers": 1, **dict.fromkeys(["booking", "content", "kept", "preview", "sealed", "upload"], 3)},
    "bulk": {"body": 1, **dict.fromkeys(["declaration", "handling", "run_async", "run_sync", "spool"], 3)},
}

# The client library that a driver wraps: the only third-party code below ring 4.
DRIVER_LIBRARIES = {
    "semel.stores.mariadb.asyncmy_client": "asyncmy",
    "semel.stores.mariadb.asyncmy_transaction": "asyncmy",
    "semel.stores.mariadb.pymysql_client": "pymysql",
    "semel.stores.mariadb.pymysql_transaction": "pymysql",
    "semel.stores.postgres.asyncpg.pipeline": "asyncpg",
    "semel.stores.postgres.asyncpg.driver": "asyncpg",
    "semel.stores.postgres.asyncpg.transaction": "asyncpg",
    "semel.stores.postgres.psycopg.libpq": "psycopg",
    "semel.stores.postgres.psycopg.driver": "psycopg",
    "semel.stores.postgres.psycopg.arrays": "psycopg",
    "semel.stores.postgres.psycopg.join": "psycopg",
    "semel.stores.postgres.sqlalchemy": "sqlalchemy",
    "semel.stores.mariadb.sqlalchemy": "sqlalchemy",
    "semel.stores.postgres.asyncpg.join": "asyncpg",
    "semel.stores.sql.django": "django",
    "semel.stores.postgres.django": "psycopg",
    "semel.stores.postgres.join_target": "psycopg",
    "semel.outbox.postgres_listen": "psycopg",
    "semel.stores.postgres.psycopg.timeout": "psycopg",
    "semel.stores.postgres.psycopg.transaction": "psycopg",
    "semel.stores.postgres.psycopg.pipeline": "psycopg",
    "semel.stores.postgres.psycopg.transaction_async": "psycopg",
    "semel.stores.redis.connections": "redis",
    "semel.stores.redis.errors": "redis",
    "semel.sealing.sealer": "cryptography",
    "semel.stores.sql.sqlalchemy": "sqlalchemy",
    "semel.stores.sql.sqlalchemy_async": "sqlalchemy",
}
CLIENTS_ELSEWHERE = {
    "semel.client.journal",
    "semel.conform.effects",
    "semel.bulk.spool",
    "semel.integrations.django.models",  # a model of no rows, which Django's permissions and admin are about
    "semel.inbox.brokers.redis_streams",
    "semel.outbox.postgres_listen",
    "semel.outbox.sinks.redis",
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
IMPURE = {1: OUTSIDE_WORLD | {"os", "tempfile"}, 2: OUTSIDE_WORLD}


def ring(name: str) -> int | None:
    """The ring of a module; None for the root, a room without one, testing, and a module without a place."""
    package, *rest = name.split(".")
    if package != "semel" or not rest or rest[0] == "testing":
        return None
    for depth in range(len(rest), 0, -1):
        room, stem = ".".join(rest[: depth - 1]), rest[depth - 1]
        found = RINGS_IN_ROOMS.get(room, {}).get(stem)
        if found is None and room and room.split(".")[0] in RINGS_OF_ROOMS:
            found = RINGS_OF_NAMES.get(stem)
        if found is not None:
            return found
    return RINGS_OF_ROOMS.get(rest[0])


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def every_module_has_a_place(modules: Modules) -> Iterator[str]:
    for name in modules:
        if ring(name) is None and name != "semel" and not within(name, "semel.testing"):
            yield f"{name} is in no room: place it in RINGS_OF_ROOMS"


def imports_point_down(modules: Modules) -> Iterator[str]:
    """The root re-exports lazily and is exempt; importing it from below ring 4 would reach every ring through it."""
    for module in modules.values():
        importer = ring(module.name)
        if importer is None or (module.is_package and importer == RINGS_OF_ROOMS.get(module.name.split(".")[1])):
            continue  # a room's own __init__ says what the room offers
        for found in imports(module, modules):
            imported = 4 if found.target == "semel" else ring(found.target)
            if imported is not None and imported > importer:
                yield f"{found}: ring {importer} may not see ring {imported}"


def the_life_of_a_command_knows_no_http(modules: Modules) -> Iterator[str]:
    """A policy, and what decides by it, serve functions, gRPC and consumers, too."""
    for module in modules.values():
        if within(module.name, "semel.core") or module.name in ("semel.keys", "semel.policy", "semel.recipe"):
            yield from (str(found) for found in imports(module, modules) if within(found.target, "semel.http"))


def stores_know_no_engine(modules: Modules) -> Iterator[str]:
    """Both are of one ring: an engine runs on a store, and a store is tried and read without an engine."""
    for module in modules.values():
        if within(module.name, "semel.stores"):
            yield from (str(found) for found in imports(module, modules) if within(found.target, "semel.engine"))


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


def databases_are_reached_through_drivers(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        drives = module.name in CLIENTS_ELSEWHERE or (ring(module.name) == 3 and within(module.name, "semel.stores"))
        if not drives and not within(module.name, "semel.testing"):
            for found in imports(module, modules):
                if any(within(found.target, client) for client in DATABASE_CLIENTS):
                    yield str(found)


def lower_rings_do_not_touch_the_world(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        banned = IMPURE.get(ring(module.name) or 0, set())
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
        {"semel/errors.py": "from semel.http import headers", "semel/http/headers.py": ""},
        {"semel/http/headers.py": "def f():\n    import semel.core.flow", "semel/core/flow.py": ""},
        {"semel/core/contract.py": "from ..engine import sync_engine", "semel/engine/sync_engine.py": ""},
        {"semel/engine/sync_engine.py": "import typing\nif typing.TYPE_CHECKING:\n    from semel import http"}
        | {"semel/http/__init__.py": ""},
        {"semel/stores/pool.py": "from semel import Engine", "semel/__init__.py": "Engine = 1"},
        {"semel/policy.py": "from semel.core.flow import Flow", "semel/core/flow.py": ""},
        {"semel/bulk/flow.py": "from semel.bulk.run_async import AsyncBulk", "semel/bulk/run_async.py": ""},
        {
            "semel/stores/sqlite/store.py": "from semel.stores.sqlite.driver import D",
            "semel/stores/sqlite/driver.py": "",
        },
    ],
    the_life_of_a_command_knows_no_http: [
        {"semel/policy.py": "from semel.http.headers import H", "semel/http/headers.py": ""},
        {"semel/core/decide.py": "def f():\n    from semel.http import headers"},
    ],
    stores_know_no_engine: [
        {"semel/stores/urls.py": "def f():\n    from semel.engine import runner"},
    ],
    nothing_imports_testing: [
        {"semel/cli/main.py": "def f():\n    from semel.testing import faults", "semel/testing/faults.py": ""},
        {"semel/__init__.py": "from . import testing", "semel/testing/__init__.py": ""},
    ],
    no_cycles: [
        {"semel/core/model.py": "from semel.policy import P", "semel/policy.py": "import semel.core.model"},
        {
            "semel/http/asgi/middleware.py": "try:\n    from ..capture import C\nexcept ImportError:\n    pass",
            "semel/http/capture.py": "from semel.http.problems import P",
            "semel/http/problems.py": "from semel.http.asgi import middleware",
        },
    ],
    databases_are_reached_through_drivers: [
        {"semel/reference/app.py": "import sqlite3"},
        {"semel/engine/runner.py": "def f():\n    from sqlalchemy.orm import Session"},
        {"semel/integrations/django.py": "from django import db"},
    ],
    lower_rings_do_not_touch_the_world: [
        {"semel/core/timing.py": "from time import time"},
        {"semel/http/headers.py": "import os.path"},
        {"semel/stores/memory/store.py": "def f():\n    import threading"},
        {"semel/core/flow.py": "import asyncio"},
        {"semel/core/backoff.py": "from importlib import import_module\nf = lambda: import_module('random')"},
    ],
    lower_rings_are_not_async: [
        {"semel/core/model.py": "async def f() -> None: pass"},
        {"semel/core/command_flow.py": "class C:\n    async def f(self) -> None:\n        return 1"},
    ],
    lower_rings_import_by_name: [
        {"semel/http/headers.py": "import importlib\nimportlib.import_module('ti' + 'me')"},
        {"semel/core/contract.py": "__import__(name)"},
    ],
    core_is_standard_library_only: [
        {"semel/engine/sync_engine.py": "import httpx"},
        {"semel/http/fingerprint/canonical.py": "try:\n    import orjson\nexcept ImportError:\n    pass"},
        {"semel/http/fingerprint/canonical.py": "def f():\n    import simplejson"},
        {"semel/http/fingerprint/canonical.py": "import importlib\norjson = importlib.import_module('orjson')"},
        {"semel/stores/sqlite/driver.py": "from sqlalchemy import text"},
        {"semel/__init__.py": "import orjson"},
    ],
}

# What looks like a breach and is none: the rules must not force contortions.
ALLOWED = [
    {"semel/engine/sync_engine.py": "from semel.http_ import x\nimport time, threading, asyncio"},
    {"semel/policy.py": "from semel.keys import KeyFormat", "semel/keys.py": ""},
    {"semel/http/fingerprint/canonical.py": "def f():\n    import orjson"},
    {"semel/http/fingerprint/canonical.py": "import importlib\ndef f():\n    importlib.import_module('orjson')"},
    {"semel/core/flow.py": "class Driver(Protocol):\n    async def run(self) -> int: ..."},
    {"semel/stores/sql/sqlalchemy.py": "import sqlalchemy", "semel/stores/sqlite/driver.py": "import sqlite3"},
    {"semel/reference/app.py": "import semel\nfrom fastapi import FastAPI", "semel/__init__.py": ""},
    {
        "semel/__init__.py": "def __getattr__(name):\n    from semel.engine import sync_engine",
        "semel/engine/sync_engine.py": "",
    },
    {"semel/core/timing.py": "def f():\n    import semel.policy", "semel/policy.py": "import semel.core.timing"},
    {"semel/core/__init__.py": "from .decide import D", "semel/core/decide.py": "from semel.core import timing"}
    | {"semel/core/timing.py": ""},
    {"semel/testing/races.py": "import sqlite3, hypothesis\nfrom semel.cli import main", "semel/cli/main.py": ""},
]


@pytest.mark.parametrize("rule", BREACHES, ids=lambda rule: rule.__name__)
def test_the_source_keeps_the_rule(rule: Rule) -> None:
    modules = semel_modules()
    assert "semel.errors" in modules  # the tree was found
    assert list(rule(modules)) == []


@pytest.mark.parametrize("rule", BREACHES, ids=lambda rule: rule.__name__)
def test_a_breach_is_reported_by(rule: Rule) -> None:
    for texts in BREACHES[rule]:
        assert list(rule(parse(texts))), texts


@pytest.mark.parametrize("texts", ALLOWED, ids=lambda texts: " ".join(texts))
def test_no_rule_complains_about(texts: dict[str, str]) -> None:
    assert [complaint for rule in BREACHES for complaint in rule(parse(texts))] == []


def test_an_import_is_named_by_the_module_it_reaches() -> None:
    text = "from . import headers\nfrom ..errors import InvalidKey\nfrom time import time\nimport semel.core.model"
    texts = {"semel/http/a.py": text, "semel/http/headers.py": "", "semel/errors.py": "", "semel/core/model.py": ""}
    modules = parse(texts)
    targets = [found.target for found in imports(modules["semel.http.a"], modules)]
    assert targets == ["semel.http.headers", "semel.errors", "time.time", "semel.core.model"]
