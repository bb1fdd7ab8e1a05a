"""`make conform`: the committed results, how they are shown, and how they agree with `make compare`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.conform import page
from bench.conform.agreement import PAIRS, Row, compare_cells
from bench.conform.run import SHOP, examine
from bench.conform.subjects import STORES, Subject
from bench.correctness.cases import NAMES
from bench.correctness.verdicts import Finding, Verdict
from semel.conform import FORMAT, CannotRun, Report, load_catalogue, parse_case
from semel.conform.report import Result

DOCS = Path(__file__).resolve().parents[2] / "docs"
CHECKS = {check.id: check for check in load_catalogue()}
RESULTS = json.loads((DOCS / "conformance-results.json").read_text("utf-8"))
SUBJECT = Subject(package="shop", version="1", store="memory", kind="python")


def report(**outcomes: str) -> Report:
    results = tuple(Result(CHECKS[name.replace("_", "-")], outcome, "it came") for name, outcome in outcomes.items())
    return Report("http://127.0.0.1", "POST /orders", "semel", results)


def test_semel_fails_no_must_and_no_should_on_any_store() -> None:
    ours = {each["store"]: each["report"] for each in RESULTS["subjects"] if each["package"] == "semel"}
    assert set(ours) == set(STORES)
    [service] = [each["report"] for each in RESULTS["subjects"] if each["package"] == "semel-service"]
    for found in (service, *ours.values()):
        assert found["ok"]
        assert [check["id"] for check in found["checks"] if check["outcome"] == "failed"] == []
        assert {check["id"] for check in found["checks"]} == {
            check.id for check in load_catalogue() if "semel" in check.profiles
        }, "the catalogue has changed: run make conform"


def test_packages_of_two_languages_are_measured_in_named_versions() -> None:
    packages = {each["package"]: each["version"] for each in RESULTS["subjects"]}
    assert {"idemkit", "exactly-once", "express-idempotency", "@node-idempotency/nestjs"} <= set(packages)
    assert all(re.match(r"\d+\.\d+", version) for version in packages.values())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", RESULTS["about"]["date"])
    assert (RESULTS["format"], RESULTS["reportFormat"]) == (page.RESULTS_FORMAT, FORMAT)


def test_every_difference_from_make_compare_is_explained() -> None:
    rows = [Row(**row) for row in RESULTS["agreement"]]
    assert len(rows) > 100
    assert [row for row in rows if not row.agrees and (not row.why or "not explained" in row.why)] == []
    text = (DOCS / "conformance-results.md").read_text("utf-8")
    assert f"they agree in {sum(row.agrees for row in rows)} of {len(rows)} cells" in text


def test_the_pairs_are_cases_and_checks_that_exist() -> None:
    assert set(PAIRS) <= set(NAMES)
    assert {check for check, _ in PAIRS.values()} <= set(CHECKS)


@pytest.mark.parametrize(
    ("verdict", "outcome", "agrees"),
    [
        (Verdict.ONCE, "passed", True),
        (Verdict.TWICE, "failed", True),
        (Verdict.TWICE, "passed", False),
        (Verdict.ONCE, "failed", False),
    ],
)
def test_a_cell_agrees_if_both_tools_find_the_same(verdict: Verdict, outcome: str, agrees: bool) -> None:
    [row] = compare_cells("x", {"retry": Finding(verdict, "")}, report(replay_once=outcome))
    assert row.agrees is agrees
    assert bool(row.why) is not agrees


def test_a_cell_that_one_tool_did_not_try_is_left_out() -> None:
    assert compare_cells("x", {"retry": Finding(Verdict.ONCE, "")}, report(replay_once="not-tried")) == []
    assert compare_cells("x", {"retry": Finding(Verdict.NOT_OFFERED, "")}, report(replay_once="passed")) == []


def test_the_page_names_what_fails_by_store_and_what_cannot_run() -> None:
    other = Subject(package="shop", version="1", store="redis", kind="python")
    away = Subject(package="away", version="2", store="memory", kind="node")
    found: dict[str, tuple[Subject, page.Outcome]] = {
        "a": (SUBJECT, report(replay_once="failed", key_doubled="failed")),
        "b": (other, report(replay_once="passed", key_doubled="failed")),
        "c": (away, CannotRun("it does not answer", "start it")),
    }
    row = Row("a", "retry", "once", "replay-once", "failed", False, "because")
    text = page.as_markdown(found, [row], {"date": "today"})
    assert "| memory: **fails**; redis: ok |" in text
    assert "cannot run: it does not answer; start it" in text
    assert "they agree in 0 of 1 cells" in text
    document = json.loads(page.as_json(found, [row], {"date": "today"}))
    assert [each.get("cannotRun", "")[:10] for each in document["subjects"]] == ["", "", "cannot run"]


def test_a_package_is_measured_killed_and_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Semel on SQLite, by a few checks of each kind."""
    monkeypatch.setattr("bench.conform.run._only", ("replay-once", "crash-remembers", "key-missing-status"))
    subject = Subject(
        package="semel", version="1", store="sqlite", kind="python", module="bench.protected", lease_seconds=1.0
    )
    found = examine(subject, "semel", tmp_path / "place", {})
    assert isinstance(found, Report)
    assert {each.check.id: each.outcome for each in found.results} == dict.fromkeys(
        ("replay-once", "key-missing-status", "crash-remembers"), "passed"
    )


def test_the_shops_case_can_be_read() -> None:
    case = parse_case(SHOP.read_text("utf-8") + '[effects]\nfile = "x"\n')
    assert {"huge_answer", "empty_answer", "binary_answer", "stream_answer"} <= set(case.requests)
