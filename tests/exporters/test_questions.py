"""The operators' eight questions: each command, panel and page that the manual names is there."""

from __future__ import annotations

import json
import shlex
from importlib.resources import files
from pathlib import Path

import pytest

from semel.cli.main import grammar
from semel.exporters.series import SERIES

MANUAL = Path(__file__).resolve().parents[2] / "docs" / "operating.md"


def questions() -> list[list[str]]:
    section = MANUAL.read_text("utf-8").partition("## Eight questions")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row.replace("\\|", "\0").strip("|").split("|")] for row in rows[2:]]
    return [[cell.replace("\0", "|") for cell in row] for row in cells]


def test_there_are_eight_questions() -> None:
    assert len(questions()) == 8


@pytest.mark.parametrize("row", questions(), ids=lambda row: str(row[0]))
def test_a_question_has_one_command_and_one_panel(row: list[str]) -> None:
    question, command, panel, _ = row
    assert question.endswith("?")
    dashboard = json.loads(files("semel.exporters").joinpath("semel-dashboard.json").read_text("utf-8"))
    assert panel in [each["title"] for each in dashboard["panels"]]
    words = shlex.split(command.strip("`"))
    if words[0] == "semel":
        assert grammar()[0].parse_args(words[1:]).run is not None
    else:
        assert words[-1].removeprefix("^") in {series.name for series in SERIES.values()}
