"""The documents agree with the code and with each other: generated pages, links, options, codes, events, commands."""

from __future__ import annotations

import inspect
import re
import runpy
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from semel.bulk.http import KINDS as BULK_KINDS
from semel.cli.commands.serve.metrics import read_shipped
from semel.cli.main import grammar
from semel.core.model import Effects, State
from semel.http.asgi import SemelMiddleware as AsgiMiddleware
from semel.http.problems import KINDS, MIDDLEWARE_KINDS, PROXY_KINDS, Kind
from semel.http.settings import HttpSettings
from semel.http.wsgi import SemelMiddleware as WsgiMiddleware
from semel.imports.http import KINDS as IMPORT_KINDS
from semel.operations.http import BAD_QUERY, NOT_FOUND
from semel.policy import REPLAY_HEADERS, Policy
from semel.recipe import Recipe
from semel.reference.settings import Settings
from semel.telemetry import EVENTS
from tests.docs.pages import DOCS, PAGES, ROOT, anchors, blocks, documents, links, maker, name_of
from tests.nemeses.lines import LOSING, SOUND

KEYWORD = inspect.Parameter.KEYWORD_ONLY
RECORDS = sorted((DOCS / "internals/decisions").glob("*.md"))


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


# --- generated pages ---


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "make_guarantees.py"))


def test_generated_pages_are_current(generator: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    main: Callable[[list[str]], int] = generator["main"]
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_a_stale_page_is_reported(
    generator: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = generator["main"].__globals__
    stale = tmp_path / "states.md"
    stale.write_text("old", "utf-8")
    monkeypatch.setitem(inside, "ROOT", tmp_path)
    monkeypatch.setitem(inside, "PAGES", {stale: lambda: "new"})

    assert generator["main"](["--check"]) == 1
    assert "states.md" in capsys.readouterr().err
    assert generator["main"]([]) == 0
    assert generator["main"](["--check"]) == 0


@pytest.mark.parametrize("name", ["tests/house/test_tidy.py::test_nothing", "no_such_case"])
def test_a_missing_test_cannot_be_named(name: str) -> None:
    with pytest.raises(LookupError):
        maker("named_tests").link_to(name)


def test_every_invariant_has_tests_that_exist() -> None:
    invariants = maker("invariants").INVARIANTS
    assert [found.name.split()[0] for found in invariants] == [f"I{number}" for number in range(1, 9)]
    for found in invariants:
        assert found.tests, found.name
        assert all(maker("named_tests").link_to(name) for name in found.tests)


def test_each_cell_of_the_settings_agrees_with_the_nemeses() -> None:
    """A cell that says otherwise is not written, and what was done to a server is in some cell of its store."""
    settings = maker("settings")
    for says, line in (
        ("kept", "server killed redis external none"),
        ("**lost**", "server killed redis external always"),
        ("kept", "no such nemesis"),
    ):
        with pytest.raises(LookupError, match="something else comes of it"):
            settings.format_cell(settings.Cell(says, (), (line,)))
    named = {name for setting in settings.SETTINGS for found in setting.cells for name in found.played}
    wanted = {
        str(line)
        for line in (*SOUND, *LOSING)
        if line.nemesis in ("server killed", "immediate stop", "backend killed")
        or "standby" in line.nemesis
        or "cut off" in line.nemesis
        or (line.nemesis == "full disk" and line.store != "redis")  # whose column is memory: its disk is in the prose
    }
    assert named == wanted


INSTALLED = re.compile(r"(?:pip install |[Ii]nstall )[`'\"]*([^\s`'\"]*semel)\[")


def test_every_page_installs_the_checkout_beside_the_project() -> None:
    """`semel` alone would be whatever an index has under that name, and `./semel` is not beside the project."""
    found = {
        path.name: set(INSTALLED.findall(path.read_text("utf-8"))) for path in PAGES if path.parent.name != "decisions"
    }
    assert {name: places for name, places in found.items() if places - {"../semel"}} == {}
    assert INSTALLED.findall("`pip install 'semel[redis]'`, Install `semel[proxy]`") == ["semel", "semel"]


def test_every_folder_of_tests_is_in_the_overview() -> None:
    folders = {path.parent.name for path in ROOT.glob("tests/*/__init__.py")}
    table = page("internals/overview.md").partition("## What the tests are made of")[2]
    assert folders - set(re.findall(r"`tests/(\w+)/`", table)) == set()


def test_every_alert_has_its_section_in_the_runbook() -> None:
    rules = read_shipped("rules")
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert re.findall(r"runbook: docs/operating\.md#(\w+)", rules) == [name.lower() for name in alerts]
    assert set(map(str.lower, alerts)) <= anchors(page("operating.md"))


# --- links ---


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_internal_links_resolve(path: Path) -> None:
    broken = []
    for link in links(path.read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = unquote(link).partition("#")
        target = (path.parent / file).resolve() if file else path
        known = (
            target.suffix != ".md" or not anchor or (target.exists() and anchor in anchors(target.read_text("utf-8")))
        )
        if not target.exists() or not target.is_relative_to(ROOT) or not known:
            broken.append(link)
    assert broken == []


def test_every_page_is_linked() -> None:
    linked = {
        (path.parent / unquote(link).partition("#")[0]).resolve()
        for path in PAGES
        for link in links(path.read_text("utf-8"))
    }
    expected = {path for path in PAGES if path.is_relative_to(DOCS)}
    assert sorted(name_of(path) for path in expected - linked) == []


def test_anchors_are_found() -> None:
    assert anchors("# The key\n## `Prefer: wait` and 409\n") == {"the-key", "prefer-wait-and-409"}


# --- what is documented exists, and what exists is documented ---


@pytest.mark.parametrize("options", [Policy, HttpSettings, Recipe], ids=lambda kind: kind.__name__)
def test_every_option_is_documented(options: type) -> None:
    text = documents()
    names = [field.name for field in fields(options) if field.init]
    assert [name for name in names if not re.search(rf"`{name}\b", text)] == []


def test_policies_in_prose_have_options_that_exist() -> None:
    """The table of options names every one of them once, with its real default."""
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page("effects.md"), flags=re.MULTILINE))
    assert set(rows) == {field.name for field in fields(Policy) if field.init}
    policy = Policy()
    numbers = {
        name: getattr(policy, name)
        for name in rows
        if isinstance(getattr(policy, name), int | float) and name != "effects"
    }
    shown = {name: rows[name] for name in numbers}
    assert shown == {name: _as_shown(value) for name, value in numbers.items()}


def _as_shown(value: float) -> str:
    return str(value) if isinstance(value, bool) else f"{value:,}".replace(",", " ")


def test_problem_codes_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| (\d{3}) \| (\w+) \| (yes|no) \|", page("http.md"), flags=re.MULTILINE)
    kinds = (*KINDS, *MIDDLEWARE_KINDS, *PROXY_KINDS, *BULK_KINDS, *IMPORT_KINDS.values(), NOT_FOUND, BAD_QUERY)
    assert sorted(rows) == sorted(_row(kind) for kind in kinds)


def _row(kind: Kind) -> tuple[str, str, str, str]:
    return kind.code, str(kind.status), kind.key_action, "yes" if kind.retryable else "no"


def test_replayed_headers_are_those_of_the_code() -> None:
    [listed] = re.findall(r"^Replayed headers: (.+?)\.$", page("http.md"), flags=re.MULTILINE | re.DOTALL)
    assert {name.lower().encode() for name in re.findall(r"`([\w-]+)`", listed)} == REPLAY_HEADERS


def test_events_and_labels_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page("telemetry.md"), flags=re.MULTILINE)
    assert {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in rows} == dict(EVENTS)


def test_commands_of_the_command_line_are_those_of_the_code() -> None:
    _, commands = grammar()
    rows = re.findall(r"^\| `semel (\w+)` \|", page("cli.md"), flags=re.MULTILINE)
    assert sorted(rows) == sorted(commands.choices)
    written = set(re.findall(r"`semel ([a-z]+)\b", documents()))
    assert written <= set(commands.choices)


def test_options_of_the_command_line_exist() -> None:
    _, commands = grammar()
    known = {spelling for parser in commands.choices.values() for spelling in parser.spellings()} | {"--version"}
    pages = page("operating.md") + page("cli.md")
    written = set(re.findall(r"`(--[a-z][a-z-]*)", pages))
    assert written <= known


def test_every_option_of_every_command_is_in_the_table() -> None:
    _, commands = grammar()
    common = {"--help", "--url", "--json"}
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", page("cli.md").partition("## Every option")[2], flags=re.MULTILINE)
    written = {name: set(re.findall(r"`(--[\w-]+)`", options)) for name, options in rows if name != "command"}
    assert written == {
        name: {each for each in parser.spellings() if each.startswith("--")} - common
        for name, parser in commands.choices.items()
    }


def test_the_settings_of_an_application_are_those_of_the_code() -> None:
    """Every keyword is in one row, with its real default."""
    both, _, own = page("settings.md").partition("## How an operation")[0].partition("What only one of them has")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", both, flags=re.MULTILINE))
    settings = {field.name: field for field in fields(HttpSettings) if field.init}
    assert set(rows) == set(settings)
    plain = {name: field.default for name, field in settings.items() if isinstance(field.default, str | int | float)}
    shown = {name: f'"{value}"' if isinstance(value, str) else f"{value:g}" for name, value in plain.items()}
    assert {name: rows[name].strip("`") for name in plain} == shown
    of_one = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ([^|]*) \|", own, flags=re.MULTILINE)
    known = {
        where: {name: each.default for name, each in inspect.signature(kind).parameters.items() if each.kind is KEYWORD}
        for where, kind in (("the ASGI middleware", AsgiMiddleware), ("the WSGI middleware", WsgiMiddleware))
    }
    written: dict[str, dict[str, object]] = {where: {} for where in known}
    for name, of, default in of_one:
        for where in known if of == "both middlewares" else (of,):
            written[where][name] = default
    assert written == {where: {name: str(value) for name, value in each.items()} for where, each in known.items()}


def test_every_term_of_the_glossary_is_there_once_and_in_order() -> None:
    terms = re.findall(r"^\| ([^|]+?) \|", page("glossary.md"), flags=re.MULTILINE)[2:]
    assert terms == sorted(terms, key=str.lower)
    assert len(terms) == len(set(terms))
    assert {state.name for state in State} - {"FAILED_NOT_REPLAYABLE"} <= set(terms)  # which people read as RETRYABLE
    assert {effects.name for effects in Effects} <= set(terms)
    assert {"RETRYABLE", "permit", "record"} <= set(terms)


def test_variables_of_the_service_are_documented() -> None:
    written = set(re.findall(r"\b(?:SEMEL_[A-Z_]+|HOST|PORT)\b", Settings.__doc__ or ""))
    assert written
    assert written <= set(re.findall(r"`(\w+)", page("operating.md")))


# --- decisions ---


def test_a_page_with_a_test_client_names_the_extra_that_installs_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert "httpx2" in extras["testing"]  # Starlette's test client refuses to be imported without
    for path in PAGES:
        text = path.read_text("utf-8")
        if "testclient import" in text:
            assert re.search(r"semel\[[a-z,]*testing[],]", text), f"{path.name} uses a test client and names no extra"


def test_decisions_are_numbered_once_and_listed() -> None:
    numbers = [int(path.name[:4]) for path in RECORDS if path.name != "README.md"]
    assert sorted(numbers) == sorted(set(numbers))  # gaps are fine: branches take ranges
    listed = set(links(page("internals/decisions/README.md")))
    assert {path.name for path in RECORDS} - {"README.md"} <= listed
    entries = re.findall(r"^- \[(\d{4})\]", page("internals/decisions/README.md"), flags=re.MULTILINE)
    assert sorted(map(int, entries)) == sorted(numbers)


@pytest.mark.parametrize("path", [path for path in RECORDS if path.name != "README.md"], ids=lambda path: path.stem)
def test_a_decision_has_its_three_parts(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text.startswith(f"# {path.name[:4]} ")
    assert re.findall(r"^\*\*(Context|Decision|Consequence)\.\*\*", text, flags=re.MULTILINE) == [
        "Context",
        "Decision",
        "Consequence",
    ]


# --- habits ---


def test_no_page_names_a_place_of_one_machine() -> None:
    places = re.compile(r"/(?:work|home|root|tmp|Users)/\w")
    found = [
        f"{name_of(path)}:{number}"
        for path in PAGES
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if places.search(line)
    ]
    assert found == []


def test_the_readme_shows_first_what_it_is_and_that_it_works() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    first_screen = "\n".join(text.splitlines()[:45])
    assert [block.language for block in blocks(first_screen)] == ["text", "sh", "text"]
    assert "curl" in first_screen
    assert "idempotency-replayed: true" in first_screen
    for command in ("make run", "make test"):
        assert command in first_screen
