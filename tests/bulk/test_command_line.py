"""`semel bulk`: how far, and what became of the items."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semel import Bulk, Engine, ItemFailed
from semel.cli.main import main
from semel.engine.bulk import BulkItem


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'bulk.db'}"


@pytest.fixture
def operation(url: str) -> str:
    def handler(item: BulkItem) -> str:
        if item.place == 1:
            raise ItemFailed("CLOSED", retryable=True)
        return f"r-{item.place}"

    engine = Engine.connect(url)
    engine.migrate()
    with engine:
        bulk = Bulk(engine, operation="count", effects="atomic")
        return bulk.run([{"clientItemId": name} for name in "abc"], handler, key="k", caller="alice").operation_id


def test_it_says_how_far_and_what_became_of_items(url: str, operation: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bulk", operation, "--items", "all", "--url", url]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "3 of 3 items: 2 succeeded, 1 failed (1 may be tried again), 0 unknown"
    assert [line.split() for line in said[1:]] == [
        ["0", "a", "SUCCEEDED", "r-0"],
        ["1", "b", "FAILED", "CLOSED"],
        ["2", "c", "SUCCEEDED", "r-2"],
    ]
    assert main(["bulk", operation, "--items", "succeeded", "--after", "0", "--json", "--url", url]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["total"], found["done"], found["failed"]) == (3, 3, 1)
    assert [item["id"] for item in found["items"]] == ["c"]


@pytest.mark.parametrize(
    ("named", "code", "text"),
    [("me", 2, "must be an operation id"), ("018f2b7e-4a10-7c3e-9b1a-0c6f5a2d9e41", 4, "no bulk of this store")],
)
def test_a_bulk_that_is_not_there(
    url: str, operation: str, capsys: pytest.CaptureFixture[str], named: str, code: int, text: str
) -> None:
    assert main(["bulk", named, "--url", url]) == code
    assert text in capsys.readouterr().err
