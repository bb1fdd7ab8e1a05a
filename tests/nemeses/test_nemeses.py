"""Servers that die, fail over, fill up, lose replies or are cut off: nothing is broken, or just what was predicted.

The table of ``docs/nemeses.md`` has a line for each of these; a test there compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.nemeses.lines import LOSING, RISKY, SOUND, Line, find_violation, play_line
from tests.nemeses.scripts import ROOT
from tests.servers.needed import needs

ALL = (*SOUND, *RISKY, *LOSING)
SOAK = "(`make soak`)"


def test_the_page_of_nemeses_has_a_line_for_each_scenario() -> None:
    page = (ROOT / "docs" / "nemeses.md").read_text("utf-8")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    told = {(line[0], line[1], line[2], line[3]): line[4] for line in lines if len(line) == 5}
    for line in ALL:
        begins = {SOUND: "0 violations", RISKY: "0 violations, or predicted: ", LOSING: "predicted: "}
        [begin] = [words for lines, words in begins.items() if line in lines]
        assert told[line.words].startswith(begin), line
        assert told[line.words].endswith(SOAK) is line.soak, line
    assert len(told) == 2 + len(ALL)  # with the head and its rule


def cases(lines: tuple[Line, ...]) -> list[Any]:
    """Those of this run, each as a parameter with a name."""
    return [
        pytest.param(line, id=line.name, marks=[needs(server) for server in line.needs])
        for line in lines
        if not line.soak
    ]


def as_the_documents_say(folder: Path, line: Line, record_property: Callable[[str, object], None]) -> None:
    verdict = play_line(folder, line, seed=2026)
    told = {word: verdict[word] for word in ("operations", "unanswered", "effects", "after", "kinds", "more")}
    print(f"{line}: {told}")
    record_property("judged", told)
    assert find_violation(line, verdict) is None


@pytest.mark.no_cover
@pytest.mark.parametrize("line", cases(SOUND))
def test_no_invariant_is_violated(tmp_path: Path, line: Line, record_property: Callable[[str, object], None]) -> None:
    as_the_documents_say(tmp_path, line, record_property)


@pytest.mark.no_cover
@pytest.mark.parametrize("line", cases(RISKY))
def test_a_risky_setting_loses_only_the_last_moment(
    tmp_path: Path, line: Line, record_property: Callable[[str, object], None]
) -> None:
    as_the_documents_say(tmp_path, line, record_property)


@pytest.mark.no_cover
@pytest.mark.parametrize("line", cases(LOSING))
def test_the_predicted_loss_is_found(
    tmp_path: Path, line: Line, record_property: Callable[[str, object], None]
) -> None:
    as_the_documents_say(tmp_path, line, record_property)
