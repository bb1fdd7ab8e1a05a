"""The public entrances as type checkers see them: right uses have no error, and wrong ones have the error they deserve.

mypy reads ``right.py`` and ``wrong.py`` with everything else (``make types``): an error in the one fails, and so does
an ignored error in the other that is none. Pyright reads them here.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ForwardRef

from semel import AsyncEngine, Engine, Policy
from semel.bulk.declaration import BulkOptions, BulkPolicy
from semel.client import AsyncClient, Client
from semel.client.intents import IntentBody
from semel.engine.state import EngineOptions
from semel.functions.declare import _HTTP_ONLY
from semel.http.settings import EndpointSettings, HttpSettings, MiddlewareSettings
from semel.policy import CommandOptions, PolicyOptions
from semel.resuming.worker import Completer, CompleterOptions
from semel.testing.idempotent.case import Case, CaseOptions
from tests.house.sources import ROOT

HERE = Path(__file__).parent
IGNORED = re.compile(r"# type: ignore\[([\w-]+)[],]")
RULES = {  # mypy's kinds of errors, and what Pyright calls them
    "arg-type": {"reportArgumentType", "reportCallIssue"},
    "assignment": {"reportAssignmentType"},
    "attr-defined": {"reportAttributeAccessIssue"},
    "call-arg": {"reportCallIssue"},
    "call-overload": {"reportArgumentType", "reportCallIssue"},
    "dict-item": {"reportArgumentType"},
}


def test_mypy_reads_the_two_files_and_refuses_an_unused_ignore() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"]
    assert settings["strict"]  # which warns of unused ignores
    assert "tests" in settings["files"]
    assert "tests.typed" not in str(settings["overrides"])


def test_pyright_finds_every_wrong_use_and_nothing_else(tmp_path: Path) -> None:
    found = dict.fromkeys(numbered_ignores(), "")
    others: list[str] = []
    for file, line, rule, message in pyright(tmp_path):
        kind = found.get(line) if file == "wrong.py" else None
        if kind is None:
            others.append(f"{file}:{line} {rule}: {message}")
        elif rule in RULES[numbered_ignores()[line]]:
            found[line] = rule
    assert others == []
    assert [line for line, rule in found.items() if not rule] == []


def numbered_ignores() -> dict[int, str]:
    """The lines of ``wrong.py`` that are wrong, with mypy's kind of error."""
    lines = (HERE / "wrong.py").read_text("utf-8").splitlines()
    return {number: kind[1] for number, line in enumerate(lines, 1) if (kind := IGNORED.search(line))}


def pyright(folder: Path) -> Iterator[tuple[str, int, str, str]]:
    """What Pyright reports of the folder, with its own default rules: file, line, rule and message."""
    settings = {
        "include": [str(HERE)],
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.11",
        "typeCheckingMode": "standard",
        "enableTypeIgnoreComments": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    command = [str(Path(sys.executable).with_name("basedpyright")), "--outputjson", "-p", str(folder)]
    ended = subprocess.run([*command, "--pythonpath", sys.executable], capture_output=True, text=True, check=False)
    for each in json.loads(ended.stdout)["generalDiagnostics"]:
        yield Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["rule"], each["message"]


# --- options are stated twice: where they are checked, and where checkers read them ----------------


def read_members(kind: Any) -> dict[str, str]:
    """The members of a TypedDict with their types, as they are written."""
    members = kind.__annotations__.items()
    return {name: each.__forward_arg__ if isinstance(each, ForwardRef) else each for name, each in members}


def read_keywords(function: Any, *others: str) -> dict[str, str]:
    """The parameters of a function that come by keyword."""
    parameters = inspect.signature(function).parameters.values()
    named = [each for each in parameters if each.kind is each.KEYWORD_ONLY and each.name not in others]
    return {each.name: each.annotation for each in named}


def fields_of(kind: Any, *others: str) -> dict[str, str]:
    """The options of a frozen class."""
    named = [name for name, each in kind.__dataclass_fields__.items() if each.init and name not in others]
    return {name: kind.__annotations__[name] for name in named}


def test_every_option_of_a_policy_is_one_of_a_declaration() -> None:
    assert read_members(PolicyOptions) == fields_of(Policy)


def test_a_function_accepts_only_its_options() -> None:
    assert read_members(PolicyOptions).keys() - read_members(CommandOptions).keys() == {*_HTTP_ONLY, "key"}


def test_every_setting_over_http_is_one_of_a_middleware() -> None:
    own = {"caller": "CallerOfScope | None"}  # of an application, which calls the scope a dictionary
    assert read_members(MiddlewareSettings) == fields_of(HttpSettings, "engine") | own
    middleware_alone = {"caller", "operations", "default", "uncovered", "may"}
    assert read_members(MiddlewareSettings).keys() - read_members(EndpointSettings).keys() == middleware_alone


def test_every_option_of_an_engine_is_one_of_connect() -> None:
    assert read_members(EngineOptions) == read_keywords(Engine.__init__) == read_keywords(AsyncEngine.__init__)


def test_every_option_of_a_bulk_a_completer_a_case_and_an_intent_is_stated() -> None:
    assert read_members(BulkOptions) == fields_of(BulkPolicy, "operation")
    assert read_members(CompleterOptions) == read_keywords(Completer.__init__)
    assert read_members(CaseOptions) == fields_of(Case, "effects", "request")
    assert (
        read_members(IntentBody)
        == read_keywords(Client.intent, "name", "key")
        == read_keywords(AsyncClient.intent, "name", "key")
    )
