"""`semel export --of ...`: operations, bulks, items, events and messages; what they hold leaves only if asked for."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from semel.admin.export_rows import KINDS, columns
from semel.cli.main import main
from tests.cli.everything import fill, fresh

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = fresh(f"sqlite:///{tmp_path / 'all.db'}")
    fill(made)
    return made


def run_export(url: str, capsys: Capture, *options: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["export", "--url", url, *options]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_kind_has_its_rows(url: str, capsys: Capture) -> None:
    [operation] = run_export(url, capsys, "--of", "operations")
    assert (operation["businessReference"], operation["state"]) == ("INV-\\-1", "SUCCEEDED")
    [bulk] = run_export(url, capsys, "--of", "bulks")
    items = run_export(url, capsys, "--of", "items")
    assert (bulk["succeeded"], bulk["failed"], len(items)) == (4, 1, 5)
    assert [(item["id"], item["state"], item["errorCode"]) for item in items][2:4] == [
        ("case-2", "SUCCEEDED", None),
        ("case-3", "FAILED", "LOCKED"),
    ]
    assert {item["operationId"] for item in items} == {bulk["operationId"]}
    events = run_export(url, capsys, "--of", "events")
    assert [event["state"] for event in events] == ["published", "postponed", *["waiting"] * 3, "parked"]
    assert [event["reason"] for event in events][-1] == "too large"
    imports = run_export(url, capsys, "--of", "imports")
    assert [(each["key"], each["state"], each["contentKept"]) for each in imports] == [
        (f"ACME:{'01' * 32}", "QUEUED", "database sealed"),
        (f"ACME:{'02' * 32}", "QUEUED", "folder"),
    ]
    messages = run_export(url, capsys, "--of", "messages")
    assert {each["messageId"]: (each["state"], each["tries"]) for each in messages} == {
        "m-1": ("handled", 0),
        "poison": ("parked", 2),
        "once-failed": ("tried", 1),
    }


def test_contents_are_exported_only_on_request(url: str, capsys: Capture) -> None:
    for kind in KINDS:
        capsys.readouterr()
        assert main(["export", "--url", url, "--of", kind]) == 0
        assert "text" not in capsys.readouterr().out
    event = run_export(url, capsys, "--of", "events", "--answers")[0]
    assert json.loads(event["payload"]) == {"n": 0, "text": "\\ \x00"}
    item = run_export(url, capsys, "--of", "items", "--answers")[1]
    assert (item["detail"], item["detailBase64"]) == (None, "AP8B")


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("contents", [False, True])
def test_csv_has_a_header_and_rows_of_equal_length(url: str, capsys: Capture, kind: str, contents: bool) -> None:
    asked = ["--of", kind, *(["--answers"] if contents else [])]
    documents = run_export(url, capsys, *asked)
    assert list(documents[0]) == columns(kind, contents=contents)
    capsys.readouterr()
    assert main(["export", "--url", url, "--format", "csv", *asked]) == 0
    head, *rows = csv.reader(StringIO(capsys.readouterr().out))
    assert head == list(documents[0])
    assert len(rows) == len(documents)


def test_an_export_to_a_file_prints_the_count(url: str, tmp_path: Path, capsys: Capture) -> None:
    assert main(["export", "--url", url, "--of", "events", "--output", str(tmp_path / "events.jsonl")]) == 0
    assert capsys.readouterr().out == f"exported: 6 events to {tmp_path / 'events.jsonl'}\n"


@pytest.mark.parametrize("filters", [["--state", "unknown"], ["--tenant", "acme"], ["--lapsed"]])
def test_filters_of_records_are_refused_for_events(url: str, capsys: Capture, filters: list[str]) -> None:
    assert main(["export", "--url", url, "--of", "events", *filters]) == 2
    assert "are about records" in capsys.readouterr().err
