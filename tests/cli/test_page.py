"""The page of the command line agrees with the grammar and with the exit codes, and so does `--help`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from semel.cli.exits import EXIT_CODES, Exit
from semel.cli.main import grammar, main

PAGE = (Path(__file__).resolve().parents[2] / "docs/cli.md").read_text("utf-8")
EXPECTED = {int(code): text for code, text in EXIT_CODES.items()}


def test_every_exit_code_is_explained() -> None:
    assert set(EXIT_CODES) == set(Exit)


def test_the_page_has_the_table_of_exit_codes() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", PAGE, flags=re.MULTILINE)
    assert {int(code): text for code, text in rows} == EXPECTED


def test_the_help_has_the_table_of_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    rows = re.findall(r"^  (\d+) +(.+)$", capsys.readouterr().out.partition("exit codes:")[2], flags=re.MULTILINE)
    assert {int(code): text for code, text in rows} == EXPECTED


def test_the_page_has_every_command_and_no_option_that_does_not_exist() -> None:
    _, commands = grammar()
    rows = re.findall(r"^\| `semel (\w+)` \|", PAGE, flags=re.MULTILINE)
    assert sorted(rows) == sorted(commands.choices)
    known = {spelling for parser in commands.choices.values() for spelling in parser.spellings()}
    assert set(re.findall(r"`(?:semel \w+ )?(--[a-z][a-z-]*)", PAGE)) <= known
