"""`semel census`, `top`, `size` and `metrics`: bounded reads, computed sizes, files that are shipped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.admin.census import read_census
from semel.admin.sizes import MEASURED, sizes
from semel.cli.main import main
from tests.cli.conftest import HOUR_US, Ran, Shelf

Run = Callable[..., Ran]
GROWTH = Path(__file__).resolve().parents[2] / "docs/growth.md"


def fill(shelf: Shelf) -> None:
    for number in range(3):
        shelf.succeed(f"paid-{number}", caller="bob", operation="ship")
    shelf.unknown("lost", ago_us=HOUR_US)
    shelf.abandon("stuck", ago_us=HOUR_US)
    shelf.abandon("running")


def test_a_census_says_what_is_open_unknown_and_new_and_what_was_read(shelf: Shelf, semel: Run) -> None:
    fill(shelf)
    seen = semel("census", "--json").document
    assert (seen["open"], seen["lapsed"], seen["unknown"], seen["newRecords"]) == (2, 1, 1, 6)
    assert seen["read"] == {
        "newest": 6,
        "attention": 3,
        "limit": 500,
        "olderNotRead": False,
        "attentionNotRead": False,
    }
    assert seen["oldestUnknown"]["operation"] == "pay"
    assert 3590 < seen["oldestUnknown"]["seconds"] < 4500
    assert [group["doubt"] for group in seen["unknownBy"]] == ["error:ConnectionError"]
    shown = semel("census").out
    assert "all 6 records, and 3 that need attention" in shown
    assert "error:ConnectionError" in shown


def test_a_census_stays_within_its_limit_and_says_that_there_is_more(shelf: Shelf, semel: Run) -> None:
    fill(shelf)
    seen = semel("census", "--read", "2", "--json").document
    assert (seen["read"]["newest"], seen["read"]["attention"]) == (2, 2)
    assert seen["read"]["olderNotRead"]
    assert seen["read"]["attentionNotRead"]
    assert "the newest 2 records, and 2 that need attention; there are more" in semel("census", "--read", "2").out


def test_a_census_counts_nothing_over_all_rows(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(shelf)
    with shelf.engine() as engine:
        asked: list[str] = []
        perform = engine.perform

        def noting(verb: str, make: Any) -> Any:
            asked.append(verb)
            return perform(verb, make)

        monkeypatch.setattr(engine, "perform", noting)
        assert not read_census(engine).more
        assert asked == ["find"] * 3
        assert read_census(engine, 2).more
    assert asked == ["find"] * 6  # UNKNOWN, open and new ones are a page each


def test_top_groups_by_operation_caller_and_doubt(shelf: Shelf, semel: Run) -> None:
    fill(shelf)
    by_operation = semel("top", "--json").document["groups"]
    assert [(group["operation"], group["unknown"], group["lapsed"]) for group in by_operation] == [
        ("pay", 1, 1),
        ("ship", 0, 0),
    ]
    [alice, bob] = semel("top", "--by", "caller", "--json").document["groups"]
    assert (alice["caller"], alice["open"], bob["caller"], bob["newRecords"]) == ("demo/alice", 2, "demo/bob", 3)
    [doubt] = semel("top", "--by", "doubt", "--json").document["groups"]
    assert (doubt["doubt"], doubt["unknown"], doubt["operations"]) == ("error:ConnectionError", 1, ["pay"])
    assert doubt["oldestUnknownSeconds"] > 3590
    text = semel("top", "--by", "caller", "--limit", "1").out
    assert "1 more: --limit 2" in text
    assert "read: all 6 records" in text


def test_top_escapes_names_for_the_terminal(shelf: Shelf, semel: Run) -> None:
    shelf.succeed("key", caller="al\x1b[31mice")
    assert "\x1b" not in semel("top", "--by", "caller").out


# --- sizes ----------------------------------------------------------------------------------------


def test_the_constants_are_those_of_the_page() -> None:
    text = GROWTH.read_text("utf-8").partition("## How large a store becomes")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", text, flags=re.MULTILINE)
    shown = {}
    for name, one in MEASURED.items():
        numbers = (one.row, one.answer, one.indexes, "all" if one.in_memory else one.ids, f"{one.fill:g}")
        shown[name] = " | ".join([*map(str, numbers), "by the server" if one.purged is None else f"{one.purged:,}"])
    assert dict(rows) == shown


@pytest.mark.parametrize(
    ("engine", "measured"), [("postgresql", 668), ("sqlite", 491), ("mariadb", 1_820), ("redis", 1_900)]
)
def test_the_constants_give_what_was_measured(engine: str, measured: int) -> None:
    """Six of ten loaded records had an answer of 107 bytes; on Redis all, of 1,000; on MariaDB all, of 800."""
    share, answer = {"redis": (1.0, 1_000), "mariadb": (1.0, 800)}.get(engine, (0.6, 107))
    [size] = [each for each in sizes(1, answer, 1_000_000, share * 1_000_000) if each.engine == engine]
    assert size.bytes / size.rows == pytest.approx(measured, rel=0.02)


def test_size_is_reported_for_each_engine(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["size", "--commands-per-second", "100", "--answer-bytes", "1000", "--keep", "1d", "--keep-answers", "1h"]
    assert main([*call, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["engine"] for each in found["engines"]] == ["postgresql", "sqlite", "mariadb", "redis"]
    assert {each["rows"] for each in found["engines"]} == {8_640_000}
    assert {each["purgesPerSecond"] for each in found["engines"]} == {200}
    assert main(call) == 0
    assert "8,640,000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "text", "says"),
    [
        ("--keep", "soon", "a time such as 90s"),
        ("--keep", "0d", "a time such as 90s"),
        ("--keep", "101y", "a time such as 90s"),
        ("--commands-per-second", "nan", "more than 0"),
        ("--commands-per-second", "-1", "more than 0"),
        ("--answer-bytes", "1kB", "whole number"),
    ],
)
def test_impossible_sizes_are_refused_in_one_line(
    option: str, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    call = {"--commands-per-second": "1", "--answer-bytes": "1", "--keep": "1d", option: text}
    assert main(["size", *(f"{name}={value}" for name, value in call.items())]) == 2
    said = capsys.readouterr().err
    assert option in said
    assert says in said
    assert len(said.splitlines()) == 1


# --- what is shipped ------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["rules", "dashboard"])
def test_rules_and_dashboard_are_written_out(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out"
    assert main(["metrics", what]) == 0
    shown = capsys.readouterr().out
    assert main(["metrics", what, "--output", str(target)]) == 0
    assert target.read_text() == shown
    assert main(["metrics", what, "--output", str(target)]) == 1  # it is there
    assert main(["metrics", what, "--output", str(target), "--force"]) == 0
    assert main(["metrics", what, "--force"]) == 2


def test_gauges_are_written_for_node_exporter(shelf: Shelf, semel: Run, tmp_path: Path) -> None:
    fill(shelf)
    target = tmp_path / "semel.prom"
    assert semel("metrics", "gauges", "--output", str(target)).code == 0
    text = target.read_text()
    assert 'semel_records_unknown{doubt="error:ConnectionError",operation="pay"} 1.0' in text
    assert target.stat().st_mode & 0o777 == 0o644
    assert semel("metrics", "gauges", "--json").document["text"].splitlines()[0].startswith("# HELP semel_store_up")
