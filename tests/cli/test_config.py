"""`semel config`: what is in force, where it comes from, what it guarantees, as the guarantees page has it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from semel import Bulk
from semel.admin.failures import UsageFailed
from semel.admin.guarantees import Ground, after_crash, level, promises
from semel.check.application import load
from semel.core.model import Effects
from semel.policy import Policy
from semel.stores.memory.store import MemoryStore
from semel.stores.sqlite.store import SqliteStore
from tests.cli.conftest import Ran, Shelf
from tests.docs.pages import maker

Run = Callable[..., Ran]

FASTAPI = """
from fastapi import FastAPI
from semel import AsyncEngine
from semel.integrations.fastapi import Semel
from semel.http.caller import single_caller

print("importing")
semel = Semel(AsyncEngine.connect("sqlite:///app.db?synchronous=NORMAL"), caller=single_caller, wait_seconds_max=5)
app = FastAPI()

@app.post("/payments")
@semel.command("payments.create", lease_seconds=10, nothing_happened=(KeyError,), key="optional")
async def pay(): ...

@app.post("/orders")
@semel.command("orders.create", effects="atomic")
async def order(): ...

semel.install(app)

def make():
    return app

def broken():
    raise RuntimeError("no\\nluck")
"""
BULK = """
from fastapi import FastAPI
from semel import AsyncBulk, AsyncEngine
from semel.integrations.fastapi import Semel
from semel.http.caller import single_caller

semel = Semel(AsyncEngine.connect("sqlite:///app.db"), caller=single_caller)
app = FastAPI()

async def handle(item): ...

for effects in ("atomic", "idempotent", "external"):
    bulk = AsyncBulk(semel.engine, operation=f"cases.{effects}", effects=effects, chunk_items=7)
    app.add_api_route(f"/cases/{effects}", semel.bulk(bulk, handle).answer, methods=["POST"])
"""
WSGI = """
from semel import Engine, Policy
from semel.http.caller import single_caller
from semel.http.routing import Operation
from semel.http.wsgi.middleware import SemelMiddleware

def plain(environ, start_response): ...

app = SemelMiddleware(
    plain,
    Engine.connect("memory://"),
    caller=single_caller,
    operations=[Operation("/pay", Policy(effects="idempotent", on_unprotected="mark"))],
)
"""


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Write a module where the command line is run; it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(dedent(text), "utf-8")

    yield write
    for name in set(sys.modules) - known:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.mark.parametrize("name", ["app", "make()"])
def test_an_application_is_asked_for_its_operations(
    semel: Run, write_module: Callable[[str, str], None], name: str
) -> None:
    write_module("shop_fastapi", FASTAPI)
    ran = semel("config", f"shop_fastapi:{name}", "--json")
    document = ran.document  # what the module prints goes elsewhere
    pay, order = document["operations"]
    assert (pay["operation"], pay["route"], pay["effects"]) == ("payments.create", "POST /payments", "EXTERNAL")
    assert pay["settings"]["lease_seconds"] == {"value": 10, "source": "declared"}
    assert pay["settings"]["deadline_seconds"] == {"value": 300, "source": "default"}
    assert pay["settings"]["nothing_happened"] == {"value": ["KeyError"], "source": "declared"}
    assert pay["settings"]["wait_seconds_max"] == {"value": 5, "source": "declared"}
    assert set(pay["settings"]) >= {name for name, field in Policy.__dataclass_fields__.items() if field.init}
    assert "key is optional" in pay["caveats"][0]
    assert (order["effects"], order["caveats"]) == ("ATOMIC", [])
    assert document["store"]["url"] == {"value": "sqlite:///app.db?synchronous=NORMAL", "source": "application"}
    assert document["store"]["synchronous"] == {"value": "NORMAL", "source": "URL"}
    assert document["store"]["busy_seconds"]["source"] == "default"
    assert "importing" not in ran.out


def test_a_middleware_and_a_single_operation(semel: Run, write_module: Callable[[str, str], None]) -> None:
    write_module("shop_wsgi", WSGI)
    text = semel("config", "shop_wsgi:app").out
    assert "POST /pay" in text
    assert "IDEMPOTENT: one effect, as long as the provider deduplicates" in text
    assert "only until this process ends" in text
    assert "on_unprotected='mark'" in text
    assert semel("config", "shop_wsgi:app", "--operation", "POST /pay").code == 0
    other = semel("config", "shop_wsgi:app", "--operation", "POST /pax")
    assert other.code == 4
    assert "did you mean 'POST /pay'" in other.err


def test_a_bulk_has_the_guarantees_of_its_items_effects(semel: Run, write_module: Callable[[str, str], None]) -> None:
    write_module("shop_bulk", BULK)
    text = semel("config", "shop_bulk:app").out
    assert "BULK of atomic items: a list of items: exactly one committed effect of each" in text
    operations = semel("config", "shop_bulk:app", "--json").document["operations"]
    told = [(each["effects"], [promise["holds"] for promise in each["guarantees"]]) for each in operations]
    rest = ["holds"] * 7
    assert told == [
        ("BULK of atomic items", ["holds", *rest]),
        ("BULK of idempotent items", ["limited", *rest]),
        ("BULK of external items", ["not promised", *rest]),
    ]
    assert operations[0]["settings"]["chunk_items"] == {"value": 7, "source": "declared"}
    assert operations[0]["settings"]["at_once"] == {"value": 1, "source": "default"}


def test_a_bulks_records_show_a_bulk_but_not_its_items_effects(semel: Run, shelf: Shelf) -> None:
    with shelf.engine() as engine:
        Bulk(engine, operation="cases", effects="atomic").run([{}], lambda item: None, key="k", caller="alice")
    [operation] = semel("config", "--json").document["operations"]
    assert (operation["effects"], operation["level"][:42]) == ("BULK", "a list of items, each with its own outcome")
    assert "effects" not in operation["settings"]
    assert operation["guarantees"][0]["holds"] == "not promised"


def test_a_module_of_functions(semel: Run, write_module: Callable[[str, str], None]) -> None:
    write_module(
        "shop_functions",
        """
        from semel import Engine
        from semel.functions.declare import command

        engine = Engine.connect("memory://")

        @command(engine, "invoices.send", effects="idempotent", caller="customer", key="invoice")
        def send(customer: str, invoice: str) -> str:
            return invoice
        """,
    )
    [operation] = semel("config", "shop_functions", "--json").document["operations"]
    assert (operation["operation"], operation["effects"]) == ("invoices.send", "IDEMPOTENT")


MISTAKES = {
    "no module": ("nowhere_at_all:app", "no module 'nowhere_at_all'"),
    "no name": ("shop_fastapi:ap", "did you mean 'app'"),
    "form": ("shop/fastapi.py:app", "module:app"),
    "factory": ("shop_fastapi:broken()", "RuntimeError: no luck"),
    "not callable": ("shop_fastapi:app.title()", "TypeError"),
    "nothing declared": ("json:dumps", "declares no operation"),
    "raises": ("shop_raises", "ValueError: at once"),
    "exits": ("shop_exits", "SystemExit"),
    "imports what is missing": ("shop_imports", "No module named 'not_installed'"),
    "no Python": ("shop_syntax", "SyntaxError"),
}


@pytest.mark.parametrize(("spec", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line(semel: Run, write_module: Callable[[str, str], None], spec: str, said: str) -> None:
    write_module("shop_fastapi", FASTAPI.replace('print("importing")', ""))
    write_module("shop_raises", "raise ValueError('at once')")
    write_module("shop_exits", "raise SystemExit(3)")
    write_module("shop_imports", "import not_installed")
    write_module("shop_syntax", "def")
    ran = semel("config", spec)
    assert ran.code == 2
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1
    assert ran.out == ""


def test_the_current_folder_is_searched_once(write_module: Callable[[str, str], None]) -> None:
    write_module("shop_plain", "value = 7")
    assert load("shop_plain:value") == 7
    before = list(sys.path)
    assert load("shop_plain:value.real") == 7
    assert sys.path == before
    with pytest.raises(UsageFailed):
        load(":app")


# --- records ------------------------------------------------------------------------------------


def test_records_show_the_policy_they_were_claimed_under(semel: Run, shelf: Shelf) -> None:
    shelf.succeed("one", lease_seconds=7, deadline_seconds=70, answer_seconds=60)
    shelf.succeed("two")
    shelf.succeed("three")
    shelf.succeed("four", operation="ship", effects="idempotent", attempts_max=3, dedup_for_seconds=600)
    document = semel("config", "--json").document
    newer, older, ship = document["operations"]
    assert [(each["operation"], each["records"]) for each in (newer, older, ship)] == [
        ("pay", 2),
        ("pay", 1),
        ("ship", 1),
    ]
    values = {name: setting["value"] for name, setting in older["settings"].items()}
    assert values["lease_seconds"] == 7
    assert values["deadline_seconds"] == 70
    assert values["answer_seconds"] == 60
    assert {setting["source"] for setting in older["settings"].values()} == {"records"}
    assert ship["settings"]["dedup_for_seconds"]["value"] == 600
    assert ship["settings"]["attempts_max"]["value"] == 3
    assert document["store"]["url"]["source"] == "--url"
    assert document["store"]["migrations_pending"]["value"] == []
    assert [each["records"] for each in semel("config", "--json", "--records", "1").document["operations"]] == [1]


def test_an_empty_store_names_what_else_can_be_shown(semel: Run) -> None:
    assert "semel config module:app" in semel("config").out


# --- guarantees ---------------------------------------------------------------------------------


def ground(**options: Any) -> Ground:
    policy = Policy.of(**options)
    return Ground(terms=policy.terms, capabilities=SqliteStore.capabilities)


def test_the_invariants_are_those_of_the_page() -> None:
    expected = [invariant.name for invariant in maker("invariants").INVARIANTS]
    for effects in Effects:
        assert [promise.name for promise in promises(ground(effects=effects))] == expected


@pytest.mark.parametrize("effects", Effects)
def test_the_shown_result_of_a_crash_matches_the_page(effects: Effects) -> None:
    policy = Policy(effects=effects)
    assert f"**{after_crash(policy.terms).verdict.__name__}**" in maker("outcomes").after_crash(policy)


def holds(subject: Ground) -> dict[str, str]:
    return {promise.name[:2]: promise.holds for promise in promises(subject)}


def test_guarantees_follow_from_effects_and_store() -> None:
    atomic, idempotent, external = (ground(effects=effects) for effects in Effects)
    assert [holds(each)["I1"] for each in (atomic, idempotent, external)] == ["holds", "limited", "not promised"]
    assert set(holds(atomic).values()) == {"holds"}
    assert holds(external)["I4"] == "holds"
    weak = Ground(terms=external.terms, capabilities=SqliteStore.capabilities, weak_sync=True)
    assert (holds(weak)["I2"], holds(weak)["I4"]) == ("limited", "limited")
    assert "power loss" in level(weak)
    memory = Ground(terms=external.terms, capabilities=MemoryStore.capabilities)
    assert (holds(memory)["I2"], holds(memory)["I4"]) == ("limited", "limited")
    nowhere = Ground(terms=atomic.terms, capabilities=MemoryStore.capabilities)
    assert holds(nowhere)["I1"] == "not promised"
    outside = Ground(terms=atomic.terms, capabilities=SqliteStore.capabilities, behind="middleware", reaped=False)
    assert (holds(outside)["I5"], holds(outside)["I6"]) == ("limited", "limited")


def test_every_reason_is_given(semel: Run, shelf: Shelf) -> None:
    shelf.succeed("one")
    [operation] = json.loads(semel("config", "--json").out)["operations"]
    assert all(promise["why"] for promise in operation["guarantees"])
    assert operation["level"]
