"""Measure the layout: its size, its rooms, and the path of one fresh command. Run by ``make house``.

    python scripts/house.py            a table
    python scripts/house.py --json     one JSON document
    python scripts/house.py --check    exit code 1 where a target is missed

The targets are questions and not walls: a figure over its target asks which room has two nouns in it.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "semel"
CORE = ("core", "engine", "stores/memory")

# Class names that are defined more than once, and why that is right.
TWINS: dict[str, str] = {
    "Semel": "each framework's extension has one name, as users know it from their framework",
    **dict.fromkeys(
        ["CaptureMiddleware", "ResumedApp", "RouteCall", "SemelMiddleware"],
        "the same part of the ASGI and the WSGI surface, each imported from its own package",
    ),
    "InboxMiddleware": "each broker's middleware, named as the broker names its own",
    "Command": "Django demands this name of a management command",
    "Record": "the model that Django's admin shows under this name",
    "Operation": "public in `semel.http`: a declared route; in `core/model`: what the store remembers",
    "Case": "public in `semel.conform`: a test case; and a reconciler's argument: one unknown execution",
    "Done": "public in `semel.client` and in `semel`: what the client got, and what an item's handler returns",
    "Facts": "public in `semel.imports`: of a file; in `http/fingerprint`: of a request",
    "Purged": "public in `semel.imports`: what that purge forgot; in `core/model`: a chunk of a store's",
    "Refused": "public in `semel`, in `semel.client` and of sinks: who refused is the package's name",
    "Result": "public in `semel`: of a command; in `conform/report`: of a check",
}


# Modules of fewer than 60 lines that one other module of their room imports, and why they are separate.
SMALL: dict[str, str] = {
    "integrations/django/models.py": "Django demands this name, and imports it before the admin",
    "http/forms.py": "public in `semel.http`; only applications use it",
    "reference/notes.py": "one downstream of the reference service each, as in `ledger`, `orders` and `payments`",
    "stores/sqlite/file.py": "the only code of this room that asks the host; what it finds is judged elsewhere",
}


# Functions whose whole name is a participle, such as ``told``: lower it with each one that is renamed.
PARTICIPLES_MOST = 2
# The same outside of the wheel. One is asyncio's name for a method, one Semel's own.
PARTICIPLES_OUTSIDE_MOST = 2
OUTSIDE = ("bench", "docs", "examples", "scripts", "tests", "verification")
_IRREGULAR = frozenset(
    (
        *("asked", "been", "begun", "born", "bought", "bound", "broken", "brought", "built", "caught", "chosen"),
        *("cut", "dealt", "done", "drawn", "driven", "felt", "forgotten", "fought", "found", "frozen", "given"),
        *("gone", "grown", "heard", "held", "hidden", "kept", "known", "laid", "left", "lent", "lost", "made"),
        *("meant", "met", "paid", "proven", "rung", "said", "seen", "sent", "shown", "shut", "sold", "sought"),
        *("spent", "split", "spoken", "struck", "taken", "taught", "thought", "thrown", "told", "torn", "understood"),
        *("woken", "won", "worn", "wound", "written"),
    )
)
_NO_PARTICIPLES = frozenset(
    {"bound", "cut", "embed", "feed", "found", "heed", "left", "need", "proceed", "seed", "shut", "split", "succeed"}
)
_BEHIND = frozenset({"again", "by", "for", "from", "here", "in", "inside", "of", "on", "over", "up", "with", "within"})


class Figure(NamedTuple):
    """One line of the table: what was counted, and what it should not exceed (None: no target)."""

    name: str
    value: int
    most: int | None = None
    detail: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the target is met."""
        return self.most is None or self.value <= self.most


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, print, and say whether the targets are met."""
    parser = argparse.ArgumentParser("house", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--check", action="store_true", help="exit code 1 where a target is missed")
    given = parser.parse_args(arguments)
    found = list(figures())
    if given.json:
        sys.stdout.write(json.dumps([one._asdict() | {"met": one.is_met} for one in found], indent=2) + "\n")
    else:
        width = max(len(one.name) for one in found)
        for one in found:
            most = "" if one.most is None else f"  (at most {one.most:,}{'' if one.is_met else ': missed'})"
            sys.stdout.write(f"{one.name:<{width}}  {one.value:>7,}{most}{'  ' + one.detail if one.detail else ''}\n")
    return 1 if given.check and not all(one.is_met for one in found) else 0


def figures() -> Iterator[Figure]:
    """Every figure, in the order of the table."""
    modules = sorted(PACKAGE.rglob("*.py"))
    yield Figure("lines of Python in the wheel", sum(_lines(path) for path in modules), 36_000)
    yield Figure("lines of verification, outside of the wheel", sum(map(_lines, (ROOT / "verification").rglob("*.py"))))
    core = [path for part in CORE for path in (PACKAGE / part).rglob("*.py")]
    yield Figure("lines of core, engine and memory", sum(map(_lines, core)), 5_700)
    yield Figure("files of core, engine and memory", len(core), 30)
    folders = Counter(path.parent.relative_to(PACKAGE.parent) for path in modules)
    fullest, count = folders.most_common(1)[0]
    yield Figure("Python files in the fullest folder", count, 20, str(fullest))
    small = [path for path in modules if path.name != "__init__.py" and _lines(path) < 60]
    yield Figure("modules of fewer than 60 lines", len(small))
    single = [str(path.relative_to(PACKAGE)) for path in small if _has_one_reader_in_its_room(path, modules)]
    unexplained = sorted(set(single) ^ SMALL.keys())  # also a reason for what needs none any more
    names = ", ".join(unexplained)
    yield Figure("of these: read by one module of their room, without a reason", len(unexplained), 0, names)
    names = Counter(
        node.name
        for path in modules
        if "testing" not in path.relative_to(PACKAGE).parts
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    twice = {name for name, times in names.items() if times > 1}
    yield Figure("class names defined more than once, with a reason", len(twice & TWINS.keys()))
    unreasoned = sorted(twice ^ TWINS.keys())  # also a reason for what is no twin any more
    yield Figure("class names defined more than once, without", len(unreasoned), 0, ", ".join(unreasoned))
    yield Figure("imports of a higher ring", upward_imports(), 0)
    participles = [name for path in modules for name in participle_names(path.read_text("utf-8"))]
    yield Figure("functions of the wheel named by a participle", len(participles), PARTICIPLES_MOST)
    outside = [name for path in outside_modules() for name in participle_names(path.read_text("utf-8"))]
    yield Figure("functions outside of the wheel named by a participle", len(outside), PARTICIPLES_OUTSIDE_MOST)
    yield Figure("methods that only say «Never asked»", sum(_never_asked(path) for path in modules), 0)
    calls, files = fresh_command()
    yield Figure("Python calls of a fresh ASGI command on memory", calls, 95)
    yield Figure("files of Semel that they lie in", files, 16)


def upward_imports() -> int:
    """The imports of a module from a ring above its own, by the rule and the table of the tests."""
    sys.path.insert(0, str(ROOT))
    from tests.house.sources import semel_modules
    from tests.house.test_layers import imports_point_down

    return len(list(imports_point_down(semel_modules())))


def outside_modules() -> list[Path]:
    """The Python files that are not in the wheel: tests, tools, examples."""
    return sorted(path for room in OUTSIDE for path in (ROOT / room).rglob("*.py"))


def participle_names(text: str) -> Iterator[str]:
    """The functions of a module that are called by what was done, not by what they do or return.

    A property or a field may be a fact (``settled``), and so may a noun's adjective be (``stored_answer``).

    >>> list(participle_names("def told(): ...\\ndef given_again(): ...\\ndef tell(): ...\\ndef kept_answer(): ..."))
    ['told', 'given_again']
    """
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        decorators = [ast.unparse(each) for each in node.decorator_list]
        if any("property" in each or each.endswith((".setter", ".field")) for each in decorators):
            continue
        first, *rest = node.name.strip("_").split("_")
        is_participle = first in _IRREGULAR or (first.endswith("ed") and len(first) > 3)
        if is_participle and first not in _NO_PARTICIPLES and all(word in _BEHIND for word in rest):
            yield node.name


def _has_one_reader_in_its_room(path: Path, modules: Sequence[Path]) -> bool:
    """Whether one module imports this one, and lies in the same folder. Shared by several, it holds their noun."""
    parent, stem = ".".join(path.relative_to(PACKAGE.parent).parent.parts), path.stem
    imports = re.compile(
        rf"(?:from|import) {re.escape(parent)}\.{stem}\b|from {re.escape(parent)} import [^\n]*\b{stem}\b"
        rf"|[\"']{re.escape(parent)}\.{stem}[\"':]"
    )
    readers = [other for other in modules if other != path and imports.search(other.read_text("utf-8"))]
    return len(readers) == 1 and readers[0].parent == path.parent


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _never_asked(path: Path) -> int:
    return path.read_text("utf-8").count("Never asked")


def fresh_command() -> tuple[int, int]:
    """Semel's own calls of one fresh command through the ASGI middleware on the memory store, and their files."""
    from semel import AsyncEngine, Policy
    from semel.http import Operation, single_caller
    from semel.http.asgi import SemelMiddleware

    async def shop(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"ordered"})

    async def run() -> tuple[int, int]:
        engine = AsyncEngine.connect("memory://?persistence=none")
        operations = [Operation("/orders", Policy(), name="orders.create")]
        app = SemelMiddleware(shop, engine, caller=single_caller, operations=operations)

        async def ask(key: str) -> None:
            headers = [(b"idempotency-key", key.encode()), (b"content-type", b"application/json")]
            scope = {"type": "http", "method": "POST", "path": "/orders", "raw_path": b"/orders", "headers": headers}
            scope |= {"query_string": b"", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"}

            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": b'{"sku": "book-1"}', "more_body": False}

            async def send(_: Any) -> None:
                """The answer goes nowhere."""

            await app(scope, receive, send)

        async with engine:
            for number in range(5):
                await ask(f"warm-{number}")
            seen: list[str] = []

            def note(frame: Any, event: str, _: Any) -> None:
                if event == "call" and (name := frame.f_code.co_filename).startswith(str(PACKAGE)):
                    seen.append(name)

            sys.setprofile(note)
            try:
                await ask("fresh")
            finally:
                sys.setprofile(None)
        return len(seen), len(set(seen))

    return asyncio.run(run())


if __name__ == "__main__":
    raise SystemExit(main())
