"""What a person's terminal shows: nothing is wider than it, and nothing of what is stored is lost or interpreted."""

from __future__ import annotations

import io
import sys

import pytest

from semel.cli.terminal import Output

HEADS = ("OPERATION ID", "STATE", "CALLER")
ROWS = [("0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55", "SUCCEEDED", "acme/" + "x" * 60), ("b", "[red]UNKNOWN", "a\x1b[31mb")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=["rich", "plain"])
def terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    if request.param == "plain":
        monkeypatch.setitem(sys.modules, "rich.console", None)
    return Terminal()


def lines_of(terminal: Terminal) -> list[str]:
    return terminal.getvalue().splitlines()


def test_a_table_keeps_every_character(terminal: Terminal) -> None:
    Output(machine=False, stdout=terminal).table(HEADS, ROWS)
    text = terminal.getvalue()
    assert "\x1b" not in text  # neither a stored one nor a colour that was not asked for
    assert "[red]" in text  # no markup
    assert text.count("x") >= 60
    assert "0199e0c4" in text


def test_a_table_is_no_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    Output(machine=False, stdout=terminal).table(HEADS, ROWS)
    assert max(map(len, lines_of(terminal))) <= 60
    assert ROWS[0][0] in terminal.getvalue()  # an id is copied: it is never folded


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_no_id_number_or_heading_is_folded(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    heads = ("STATE", "OPERATION", "SKIPPED", "ID", "REASON")
    rows = [
        ("QUEUED", "payments.create", "1841", ROWS[0][0], "the broker said no for the third time"),
        ("UNKNOWN", "\u6771\u4eac", "0", ROWS[0][0], ""),
    ]
    Output(machine=False, stdout=terminal).table(heads, rows, indent=2)
    words = terminal.getvalue().split()
    assert sorted(words) == sorted(word for row in (heads, *rows) for cell in row for word in cell.split())
    assert max(len(line.rstrip()) for line in lines_of(terminal)) <= width
    assert all(not line or line.startswith("  ") for line in lines_of(terminal))


def test_a_long_text_is_indented_below_its_head(terminal: Terminal) -> None:
    Output(machine=False, stdout=terminal).say_hanging("warning  disk     ", " ".join(["word"] * 30), "yellow")
    lines = lines_of(terminal)
    assert lines[0].startswith("warning  disk     word word")
    assert all(line.startswith(" " * 18 + "word") for line in lines[1:])
    assert len(lines) > 2
    assert max(map(len, lines)) <= 60


def test_output_that_is_not_a_terminal_gets_whole_lines() -> None:
    stream = io.StringIO()
    out = Output(machine=False, stdout=stream)
    out.table(HEADS, ROWS)
    out.say_hanging("head  ", "word " * 60)
    assert len(stream.getvalue().splitlines()) == len(ROWS) + 2
