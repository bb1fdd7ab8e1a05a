"""`semel export`: what leaves the store, what never does, and a file that is whole or absent."""

from __future__ import annotations

import argparse
import base64
import csv
import json
import os
import sqlite3
import stat
import tempfile
from collections.abc import Callable
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from semel import Answer
from semel.admin import filters
from semel.admin.failures import CommandFailed
from semel.cli.arguments import parse
from semel.cli.commands.stores import export as exporting
from semel.cli.commands.stores.export import cell
from semel.cli.main import grammar
from semel.cli.terminal import Output
from semel.cli.whole_file import WholeFile
from semel.stores.sqlite.store import SQL
from tests.cli.conftest import HOUR_US, Ran, Shelf

Run = Callable[..., Ran]


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def store_answer(shelf: Shelf, key: str, body: bytes, **options: Any) -> str:
    with shelf.engine() as engine:
        return engine.run(
            shelf.command(key, **options), lambda permit: Answer(201, ((b"content-type", b"text/plain"),), body)
        ).operation_id


def test_every_record_once_newest_first_over_many_pages(
    semel: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters.pages, "__defaults__", (2,))
    monkeypatch.setattr(exporting, "ANSWERS_AT_ONCE", 1)
    ids = [shelf.succeed(f"key-{number}") for number in range(5)][::-1]
    for arguments in ([], ["--answers"]):
        ran = semel("export", *arguments)
        assert [record["operationId"] for record in lines(ran.out)] == ids
        assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["--state", "unknown"], {"lost"}),
        (["--operation", "ship"], {"held"}),
        (["--caller", "bob"], {"old"}),
        (["--tenant", "other"], set()),
        (["--lapsed"], {"held"}),
    ],
)
def test_an_export_is_filtered_as_a_list_is(semel: Run, shelf: Shelf, arguments: list[str], keys: set[str]) -> None:
    ids = {
        shelf.succeed("old", caller="bob"): "old",
        shelf.unknown("lost"): "lost",
        shelf.abandon("held", operation="ship", ago_us=HOUR_US): "held",
    }
    assert {ids[record["operationId"]] for record in lines(semel("export", *arguments).out)} == keys


def test_an_export_contains_no_key_request_or_nonce_and_answers_only_on_request(semel: Run, shelf: Shelf) -> None:
    secret = "a-key-that-nobody-may-see"
    store_answer(shelf, secret, b"the body")
    with shelf.engine() as engine:
        [record] = engine.perform(
            "read", lambda: engine.store.read((bytes.fromhex(lines(semel("export").out)[0]["recordId"]),))
        )
    assert record is not None
    for arguments in ([], ["--format", "csv"], ["--answers"], ["--answers", "--format", "csv"]):
        text = semel("export", *arguments).out
        assert secret not in text
        assert record.nonce.hex() not in text
        assert record.fingerprint.hex() not in text
        assert ("the body" in text) is ("--answers" in arguments)


def test_answers_are_exported_as_text_or_base64(semel: Run, shelf: Shelf) -> None:
    store_answer(shelf, "text", "Zoë 東京".encode())
    store_answer(shelf, "binary", b"\x00\xff")
    shelf.unknown("none")
    none, binary, text = lines(semel("export", "--answers").out)
    assert (text["answerBody"], text["answerBodyBase64"]) == ("Zoë 東京", None)
    assert text["answerHeaders"] == [["content-type", "text/plain"]]
    assert (binary["answerBody"], base64.b64decode(binary["answerBodyBase64"])) == (None, b"\x00\xff")
    assert (none["answerBody"], none["answerBodyBase64"], none["answerHeaders"]) == (None, None, None)


HOSTILE = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1", '=cmd|" /C calc"!A0']


def test_no_cell_is_a_formula(semel: Run, shelf: Shelf) -> None:
    for number, text in enumerate(HOSTILE):
        shelf.succeed(f"key-{number}", caller=text, operation=f'a,"b"\n{number}')
    ran = semel("export", "--format", "csv")
    rows = list(csv.DictReader(StringIO(ran.out, newline="")))
    assert [row["caller"] for row in rows] == [f"'{text}" for text in HOSTILE[::-1]]
    assert [row["operation"] for row in rows] == [f'a,"b"\n{number}' for number in range(len(HOSTILE))][::-1]
    assert not any(value.startswith(("=", "+", "-", "@", "\t", "\r")) for row in rows for value in row.values())
    assert cell(-1) == "-1"  # a number is none


def test_an_empty_export_is_empty_and_a_csv_has_its_header(semel: Run) -> None:
    assert semel("export").out == ""
    assert semel("export", "--format", "csv").out.startswith("operationId,state,operation,tenant,caller,effects,")


# --- files --------------------------------------------------------------------------------------


def test_a_file_is_private_and_replaced_only_by_force(semel: Run, shelf: Shelf, tmp_path: Path) -> None:
    target = tmp_path / "records.jsonl"
    shelf.succeed("one")
    first = semel("export", "--output", str(target))
    assert (first.code, first.out) == (0, f"exported: 1 records to {target}\n")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    shelf.succeed("two")
    again = semel("export", "--output", str(target))
    assert again.code == 1
    assert "--force" in again.err
    assert len(lines(target.read_text("utf-8"))) == 1
    forced = semel("export", "--output", str(target), "--force", "--json")
    assert forced.document == {"exported": 2, "of": "records", "file": str(target), "format": "jsonl"}
    assert len(lines(target.read_text("utf-8"))) == 2
    assert sorted(path.name for path in tmp_path.glob("*records*")) == ["records.jsonl"]


def test_a_failed_export_leaves_nothing_behind(
    semel: Run, shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out" / "records.jsonl"
    target.parent.mkdir()
    target.write_text("former", "utf-8")
    shelf.succeed("one")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "document_of", interrupt)
    assert semel("export", "--output", str(target), "--force").code == 130
    assert [path.name for path in target.parent.iterdir()] == ["records.jsonl"]
    assert target.read_text("utf-8") == "former"


@pytest.mark.parametrize("length", [1, 30_000])  # what fails is the last write, or one in the middle
def test_a_full_disk_is_named_and_nothing_is_left(
    semel: Run, shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    shelf.succeed("one")
    monkeypatch.setattr(exporting, "document_of", lambda *_, **__: {"text": "x" * length})

    def full(*_: object, **__: object) -> tuple[int, str]:
        (folder / ".records").touch()
        return os.open("/dev/full", os.O_WRONLY), str(folder / ".records")

    monkeypatch.setattr(tempfile, "mkstemp", full)
    ran = semel("export", "--output", str(folder / "records.jsonl"))
    assert (ran.code, list(folder.iterdir())) == (1, [])
    assert f"--output {folder / 'records.jsonl'} cannot be written: No space left on device" in ran.err


@pytest.mark.parametrize("path", [".", "no/such/folder/x"])
def test_a_place_that_cannot_be_written_is_named(
    semel: Run, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = semel("export", "--output", path)
    assert ran.code == 2
    assert "--output" in ran.err


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "x"
    with WholeFile(str(target), "--output", replace=False) as file:
        file.write("ours")
        target.write_text("theirs", "utf-8")
        with pytest.raises(CommandFailed, match="exists already"):
            file.keep()
        # Also between the look and the act.
        monkeypatch.setattr(WholeFile, "_refuse_what_is_there", lambda self: None)
        with pytest.raises(CommandFailed, match="exists already"):
            file.keep()
    assert target.read_text("utf-8") == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_file_system_without_hard_links_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unlinkable(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", unlinkable)
    with WholeFile(str(tmp_path / "x"), "--output", replace=False) as file:
        file.write("ours\ud800")
        file.keep()
    assert (tmp_path / "x").read_text("utf-8") == "ours\\ud800"


def test_the_target_of_a_link_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real").write_text("old", "utf-8")
    with WholeFile(str(tmp_path / "link"), "--output", replace=True) as file:
        file.write("new")
        file.keep()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text("utf-8") == "new"


def test_a_page_begins_where_the_last_one_ended(shelf: Shelf) -> None:
    """Without looking at all that came before it: else a walk over n records would cost n squared."""
    statement = SQL["find_records"]
    with closing(sqlite3.connect(shelf.path)) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement.qmark}", [None] * len(statement.names)).fetchall()
    assert [row[3] for row in plan] == ["SEARCH semel_record USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


NASTY = "=cmd\x1b[2J\x1b]0;owned\x07\u202e\x9b31m"


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_terminal_is_not_harmed_by_an_export(shelf: Shelf, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    shelf.unknown("one", caller=NASTY)
    options, out = parse_export(shelf, form), Terminal()
    assert exporting.run(options, Output(machine=False, stdout=out)) == 0
    assert all(line.isprintable() for line in out.getvalue().split("\n"))
    assert "\\x1b[2J" in out.getvalue() if form == "csv" else "\\u001b[2J" in out.getvalue()
    assert capsys.readouterr().err == ""


def test_a_file_gets_what_is_stored_as_it_is(shelf: Shelf) -> None:
    shelf.unknown("one", caller=NASTY)
    options, out = parse_export(shelf, "csv"), StringIO()
    assert exporting.run(options, Output(machine=False, stdout=out)) == 0
    [row] = csv.DictReader(StringIO(out.getvalue(), newline=""))
    assert row["caller"] == f"'{NASTY}"


def parse_export(shelf: Shelf, form: str) -> argparse.Namespace:
    return parse(*grammar(), ["export", "--format", form, "--url", shelf.url])
