"""`semel bulk`: how far, what became of the items, and which of them a new list may hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semel import Bulk, Engine, ItemFailed
from semel.bulk.declaration import BulkItem
from semel.cli.main import main

CASES = [{"clientItemId": name, "amount": 9007199254740993} for name in "abcd"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'bulk.db'}"


@pytest.fixture
def operation(url: str) -> str:
    def handler(item: BulkItem) -> str:
        if item.place in (1, 3):
            raise ItemFailed("CLOSED" if item.place == 1 else "LOCKED", retryable=item.place == 3)
        return f"r-{item.place}"

    engine = Engine.connect(url)
    engine.migrate()
    with engine:
        bulk = Bulk(engine, operation="count", effects="atomic")
        return bulk.run(CASES, handler, key="monday", caller="alice").operation_id


def run_semel(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["bulk", *arguments])
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.mark.parametrize("scoped", [True, False])
def test_show_finds_a_bulk_by_its_key_and_prints_its_progress(
    url: str, operation: str, capsys: Capture, scoped: bool
) -> None:
    scope = ["--tenant", "default", "--caller", "alice", "--operation", "count"] if scoped else []
    code, out, _ = run_semel(capsys, "monday", *scope, "--items", "all", "--url", url)
    assert code == 0
    assert [line.split() for line in out.splitlines()][1:] == [
        ["count", "of", "default/alice,", "SUCCEEDED"],
        ["FAILED", "CLOSED:", "1"],
        ["FAILED", "LOCKED:", "1,", "may", "be", "retried"],
        ["0", "a", "SUCCEEDED", "r-0"],
        ["1", "b", "FAILED", "CLOSED"],
        ["2", "c", "SUCCEEDED", "r-2"],
        ["3", "d", "FAILED", "LOCKED"],
    ]
    assert out.splitlines()[0] == "4 of 4 items: 2 succeeded, 2 failed (1 may be retried), 0 unknown"


def test_json_output_finds_a_bulk_by_its_operation_id(url: str, operation: str, capsys: Capture) -> None:
    code, out, _ = run_semel(capsys, operation, "--items", "succeeded", "--after", "0", "--json", "--url", url)
    found = json.loads(out)
    assert code == 0
    assert (found["total"], found["done"], found["failed"], found["state"], found["running"]) == (
        *(4, 4, 2),
        *("SUCCEEDED", False),
    )
    assert found["codes"][1] == {"state": "FAILED", "errorCode": "LOCKED", "retryable": True, "count": 1}
    assert [item["id"] for item in found["items"]] == ["c"]


def test_the_output_distinguishes_an_interrupted_bulk_from_a_running_one(url: str, capsys: Capture) -> None:
    def handler(item: BulkItem) -> None:
        if item.place == 2:
            seen.append(run_semel(capsys, "monday", "--url", url)[1])
            raise KeyboardInterrupt

    seen: list[str] = []

    engine = Engine.connect(url)
    engine.migrate()
    with engine, pytest.raises(KeyboardInterrupt):
        Bulk(engine, operation="count", chunk_items=1).run(CASES, handler, key="monday", caller="alice")
    assert "running: its lease lasts" in seen[0]
    assert "interrupted: no process runs it; send it again" in run_semel(capsys, "monday", "--url", url)[1]


def test_retryable_items_come_from_the_original_list(url: str, operation: str, tmp_path: Path, capsys: Capture) -> None:
    whole, other = tmp_path / "list.jsonl", tmp_path / "other.jsonl"
    whole.write_text("".join(json.dumps(case) + "\n" for case in CASES))
    other.write_text("".join(json.dumps(case) + "\n" for case in CASES[::-1]))
    asked = ("monday", "--failed-retryable", "--url", url)
    code, out, _ = run_semel(capsys, *asked, "--list", str(whole))
    assert (code, out) == (0, '{"amount":9007199254740993,"clientItemId":"d"}\n')
    for wrong, text in (
        (["--list", str(other)], "not the list of the bulk"),
        (["--list", str(whole), "--member", "amount"], "not the list of the bulk"),
        (["--list", str(tmp_path / "none")], "cannot be read"),
    ):
        code, out, err = run_semel(capsys, *asked, *wrong)
        assert (code, out) == (1, "")
        assert text in err
    assert run_semel(capsys, *asked)[0] == 2


def test_items_refused_by_limits_do_not_change_the_identity_of_the_list(
    url: str, tmp_path: Path, capsys: Capture
) -> None:
    def handler(item: BulkItem) -> None:
        raise ItemFailed("LOCKED", retryable=True)

    lines = [b'{"clientItemId":"a"}', b'{"clientItemId":"b","note":"%s"}' % (b"x" * 100), b"{", b'{"clientItemId":"d"}']
    whole = tmp_path / "list.jsonl"
    whole.write_bytes(b"".join(line + b"\r\n" for line in lines))
    engine = Engine.connect(url)
    engine.migrate()
    with engine:
        bulk = Bulk(engine, operation="count", effects="atomic", bad_item="fail", item_bytes_max=100)
        done = bulk.run(lines, handler, key="monday", caller="alice")
        assert [each.error_code for each in bulk.outcomes(done.operation_id)] == [
            *("LOCKED", "ITEM_TOO_LARGE", "ITEM_MALFORMED", "LOCKED"),
        ]
        assert bulk.run(whole, handler, key="monday", caller="alice").replayed
    code, out, err = run_semel(capsys, "monday", "--failed-retryable", "--list", str(whole), "--url", url)
    assert (code, out.encode(), err) == (0, lines[0] + b"\n" + lines[3] + b"\n", "")


@pytest.mark.parametrize(
    ("named", "code", "text"),
    [
        ("nobody", 4, "KEY has no record"),
        ("018f2b7e-4a10-7c3e-9b1a-0c6f5a2d9e41", 4, "KEY has no record"),
        ("", 2, "KEY"),
    ],
)
def test_a_missing_bulk_is_reported(
    url: str, operation: str, capsys: Capture, named: str, code: int, text: str
) -> None:
    got, _, err = run_semel(capsys, named, "--url", url)
    assert (got, text in err) == (code, True), err
