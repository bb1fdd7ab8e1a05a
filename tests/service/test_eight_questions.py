"""The operators' eight questions, asked of a running service, whose real traffic makes each situation.

The command, the panel and the page that the manual names must each name it; promtool evaluates the panels' expressions.
"""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from starlette.testclient import TestClient

from semel import Engine
from semel.cli.commands.serve.metrics import read_shipped
from semel.cli.main import main
from semel.console import Console
from tests.exporters.shop import input_series
from tests.exporters.test_questions import questions
from tests.exporters.test_rules import promtool, unit_tests
from tests.servers.needed import needs
from tests.service.served import Served, await_true, serving
from tests.service.test_crashes import NOTE, ORDER, PAYMENT, crashing
from tests.service.test_metrics import read

pytestmark = needs("prometheus")
KEY = f"canary-{uuid4().hex}"
LOST = {**PAYMENT, "simulate": {"fail": "timeout"}}
EVAL = "18m"


@dataclass
class World:
    """A service after its traffic; ``before`` and ``after`` are its pages of metrics."""

    service: Served
    before: str
    after: str


def age(service: Served, assignment: str, operation: str, state: int) -> None:
    """Move the clock, so that a lease or an answer's time is over."""
    with closing(sqlite3.connect(service.folder / "semel.db")) as db, db:
        db.execute(f"UPDATE semel_record SET {assignment} WHERE operation = ? AND state = ?", (operation, state))


def traffic(service: Served, name: str, *, waits: bool = False) -> None:
    """Every situation once; what is counted needs it twice, since a rate is between two pages.

    Parameters: ``waits`` leaves the lease of the worker that dies to time itself.
    """
    paid = f"{KEY}-{name}-paid"
    for _ in range(3):
        assert service.post("/payments", PAYMENT, paid).status == 201
    assert service.post("/payments", PAYMENT, f"{KEY}-{name}-lost").status == 201
    assert service.post("/payments", LOST, f"{KEY}-{name}-unknown").status == 504
    assert service.post("/payments", LOST, f"{KEY}-{name}-unknown").json["code"] == "IDEMPOTENCY_OUTCOME_UNKNOWN"
    assert service.post("/payments", PAYMENT, f"{KEY}-{name}-bob", token="bob").status == 201
    reused = service.post("/payments", {**PAYMENT, "amount": "11.00"}, f"{KEY}-{name}-bob", token="bob")
    assert reused.status == 422
    late = f"{KEY}-{name}-late"
    assert service.post("/orders", ORDER, late).status == 201
    assert service.post("/orders", ORDER, late).replayed
    age(service, "answer_until = 1", "orders.create", 3)
    assert service.post("/orders", ORDER, late).status == 409
    for number in range(30):
        assert service.post("/notes", NOTE, f"{KEY}-{name}-{number}", token="bob").status == 201
    assert service.post("/notes", crashing(NOTE, "before"), f"{KEY}-{name}-dies").status == 0
    await_true(service.ready, "the next worker")
    if not waits:
        age(service, "lease_until = 1", "notes.create", 2)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serving(tmp_path_factory.mktemp("questions"), environment={"SEMEL_METRICS": "127.0.0.1:0"}) as service:
        url, pages = str(service.serving["metrics"]), []
        for count, name in enumerate(("first", "second"), 1):
            traffic(service, name)
            shown = (f'semel_records_lapsed{{operation="notes.create"}} {count}.0', f"{{doubt=.*}} {count}.0")
            await_true(lambda shown=shown: all(re.search(each, read(url)) for each in shown), "a census")  # type: ignore[misc]
            pages.append(read(url))
        assert KEY not in "".join(pages)
        yield World(service, *pages)


def ask(world: World, command: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the manual's command; return its document, or the lines that the page shows."""
    words = shlex.split(command)
    if words[0] == "curl":
        return [line for line in world.after.splitlines() if re.search(words[-1], line)]
    assert main([*words[1:], "--json", "--url", world.service.store]) == 0
    said = capsys.readouterr().out
    assert KEY not in said.replace(f"{KEY}-second-unknown", "")  # but what was asked for
    return json.loads(said)


Check = Callable[[Any], bool]
UNKNOWN = {"operation": "payments.create", "doubt": "http-504"}


def first_group(document: Any) -> dict[str, Any]:
    found: dict[str, Any] = document["groups"][0]
    return found


def has_count(lines: list[str], **labels: str) -> bool:
    inside = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
    return any(f"{{{inside}}}" in line and float(line.split()[-1]) > 0 for line in lines)


# The question -> what the command must say, the labels of the panel's data, and what the console's page must have.
ANSWERS: dict[str, tuple[Check, list[dict[str, str]], str | None]] = {
    "How many commands are stuck?": (
        lambda said: (said["lapsed"], said["oldestOpen"]["operation"]) == (2, "notes.create"),
        [{"operation": "notes.create"}],
        r"<b class=\"bad\">2</b>lapsed",
    ),
    "Which are UNKNOWN, since when, because of which downstream?": (
        lambda said: (
            (first_group(said)["doubt"], first_group(said)["unknown"], first_group(said)["operations"])
            == ("http-504", 2, ["payments.create"])
            and first_group(said)["oldestUnknownSeconds"] > 0
        ),
        [UNKNOWN],
        r"http-504</th><td>2</td><td>\d[^<]*</td>\s*<td><a[^>]*>payments.create",
    ),
    "How many replays has each operation?": (
        lambda said: has_count(said, operation="payments.create") and has_count(said, operation="orders.create"),
        [{"operation": "orders.create"}, {"operation": "payments.create"}],
        None,
    ),
    "Which clients reuse keys for other payloads?": (
        lambda said: has_count(said, operation="payments.create", caller="bob") and len(said) == 1,
        [{"operation": "payments.create", "caller": "bob"}],
        None,
    ),
    "Does the store grow too fast?": (
        lambda said: said["newRecords"] == 72 and said["newPerSecond"] > 0,
        [{}],
        r"<b>72</b> new records, at most \d+ in two minutes",
    ),
    "Do records expire before clients retry?": (
        lambda said: has_count(said, operation="orders.create") and len(said) == 1,
        [{"operation": "orders.create"}],
        None,
    ),
    "Does one caller make too many keys?": (
        lambda said: max(said["groups"], key=lambda group: group["newRecords"])["caller"] == "demo/bob",
        [{"caller": "bob"}],
        None,
    ),
    "What do I tell the client?": (
        lambda said: "Keep the key and do not send a new one" in said["story"]["client"],
        [{"outcome": outcome} for outcome in ("KeyExpired", "KeyReused", "OutcomeUnknown", "Proceed", "Replay")],
        "Tell the client:</b> Keep the key and do not send a new one",
    ),
}


def test_the_manual_asks_these_questions() -> None:
    assert [row[0] for row in questions()] == list(ANSWERS)
    for question, _, _, page in questions():
        assert bool(page) is (ANSWERS[question][2] is not None), question


@pytest.mark.parametrize("row", questions(), ids=lambda row: str(row[0]))
def test_the_command_and_the_page_name_the_situation(
    row: list[str], world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    question, command, _, page = row
    says, _, shows = ANSWERS[question]
    said = ask(world, command.strip("`").replace("KEY", f"{KEY}-second-unknown"), capsys)
    assert says(said), said
    if shows is None:
        return
    with Engine.connect(world.service.store) as engine:
        client = TestClient(Console(engine, lambda request: "olga"), base_url="http://console.test")
        path = "/"
        if page == "one record":
            path = f"/records/{said['operationId']}"
        found = client.get(path).text
        assert re.search(shows, found), found
        assert KEY not in found


def test_the_panel_names_the_situation(world: World, tmp_path: Path) -> None:
    panels = {each["title"]: each for each in json.loads(read_shipped("dashboard"))["panels"]}
    asked = []
    for question, _, panel, _ in questions():
        expression = panels[panel]["targets"][0]["expr"].replace("$__rate_interval", "15m")
        expected = ANSWERS[question][1]
        if expression.startswith("topk(10, "):
            expression = expression.replace("topk(10, ", "topk(1, ")
        labels = ", ".join(sorted(expected[0]))
        asked.append(
            {
                "expr": f"count by ({labels}) (({expression}) > 0)",
                "eval_time": EVAL,
                "exp_samples": [{"labels": format_labels(each), "value": 1} for each in expected],
            }
        )
    (tmp_path / "none.yml").write_text(json.dumps({"groups": []}))
    test = {"interval": "1m", "input_series": input_series(world.before, world.after, 30), "promql_expr_test": asked}
    (tmp_path / "tests.yml").write_text(unit_tests("none.yml", [test]))
    promtool(tmp_path, "test", "rules", "tests.yml")


def format_labels(labels: dict[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
