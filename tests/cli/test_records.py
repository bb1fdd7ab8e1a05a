"""`semel list` and `semel show`: what an operator sees, and that a terminal is never harmed by it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from io import StringIO

import pytest

from semel.cli.arguments import parse
from semel.cli.commands.records import list as list_command
from semel.cli.main import grammar
from semel.cli.terminal import Output
from semel.core.timing import span_text
from semel.telemetry import safe
from tests.cli.conftest import HOUR_US, Ran, Shelf

Run = Callable[..., Ran]


def test_the_list_has_the_promised_columns_newest_first(semel: Run, shelf: Shelf) -> None:
    older = shelf.succeed("one", ago_us=HOUR_US)
    newer = shelf.unknown("two", caller="bob", operation="ship")
    ran = semel("list")
    lines = ran.out.splitlines()
    assert ran.code == 0
    assert lines[0].split() == ["STATE", "OPERATION", "CALLER", "AGE", "ATTEMPT", "OPERATION", "ID"]
    assert lines[1].split() == ["UNKNOWN", "ship", "demo/bob", *lines[1].split()[3:-2], "1", newer]
    assert lines[2].split() == ["SUCCEEDED", "pay", "demo/alice", "60", "min", "1", older]


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (["--state", "unknown"], {"lost"}),
        (["--state", "UNKNOWN", "--state", "succeeded"], {"lost", "paid", "old"}),
        (["--operation", "ship"], {"held"}),
        (["--caller", "bob"], {"old"}),
        (["--tenant", "other"], set()),
        (["--lapsed"], {"held"}),
        (["--limit", "1"], {"held"}),
    ],
)
def test_the_list_is_filtered(semel: Run, shelf: Shelf, arguments: list[str], keys: set[str]) -> None:
    ids = {
        shelf.succeed("old", caller="bob", ago_us=HOUR_US): "old",
        shelf.succeed("paid"): "paid",
        shelf.unknown("lost"): "lost",
        shelf.abandon("held", operation="ship", ago_us=HOUR_US): "held",
    }
    records = semel("list", "--json", *arguments).document["records"]
    assert {ids[record["operationId"]] for record in records} == keys


def test_a_long_list_continues_where_the_page_ended(semel: Run, shelf: Shelf) -> None:
    wanted = [shelf.succeed(f"key-{number}") for number in range(5)][::-1]
    seen: list[str] = []
    cursor: list[str] = []
    while True:
        page = semel("list", "--json", "--limit", "2", *cursor).document
        seen += [record["operationId"] for record in page["records"]]
        if page["nextBefore"] is None:
            break
        cursor = ["--before", str(page["nextBefore"])]
    assert seen == wanted
    assert f"--before {cursor[1]}" in semel("list", "--limit", "4").out or seen


def test_a_record_is_shown_by_its_id_and_by_its_key(semel: Run, shelf: Shelf) -> None:
    operation_id = shelf.unknown("key-1")
    by_id = semel("show", operation_id, "--json").document
    by_key = semel(
        "show", "--json", "--key", "key-1", "--tenant", "demo", "--caller", "alice", "--operation", "pay"
    ).document
    for document in (by_id, by_key):
        document.pop("ageSeconds")
    assert by_id == by_key
    assert by_id["state"] == "UNKNOWN"
    assert by_id["doubt"]
    assert "semel settle" in by_id["nextAttempt"]
    text = semel("show", operation_id).out
    assert operation_id in text
    assert "key-1" not in text


def test_show_prints_a_derived_key_for_the_provider(semel: Run, shelf: Shelf) -> None:
    with shelf.engine() as engine:
        permit = engine.claim(shelf.command("key-1"))
        derived = permit.key_for("charge")  # type: ignore[union-attr]
    shown = semel("show", "--json", permit.operation_id, "--derived", "charge").document  # type: ignore[union-attr]
    assert shown["derivedKeys"] == {"charge": derived}
    assert derived in semel("show", permit.operation_id, "--derived", "charge").out  # type: ignore[union-attr]


def test_an_expired_answer_reads_expired(semel: Run, shelf: Shelf) -> None:
    operation_id = shelf.succeed("key-1", ago_us=HOUR_US, answer_seconds=60)
    assert semel("show", operation_id, "--json").document["state"] == "EXPIRED"


def test_a_missing_record_is_not_found(semel: Run) -> None:
    ran = semel("show", "0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55")
    assert (ran.code, ran.out) == (4, "")
    assert "semel list" in ran.err
    scope = ["--tenant", "demo", "--caller", "alice", "--operation", "pay"]
    assert semel("show", "--key", "nobody", *scope).code == 4


HOSTILE = "x\x1b[2J\u202egnp\u2028\x9b31m\x07\r\n\t\u200b"


def test_stored_text_is_escaped_for_the_terminal(semel: Run, shelf: Shelf) -> None:
    operation_id = shelf.unknown("key-1", caller=HOSTILE, operation=HOSTILE)
    for ran in (semel("list"), semel("show", operation_id)):
        assert ran.code == 0
        assert all(char.isprintable() for char in ran.out.replace("\n", ""))
        assert "\\x1b[2J\\u202egnp" in ran.out
    assert semel("list", "--json").document["records"][0]["caller"] == HOSTILE


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("Zoë 東京", "Zoë 東京"),
        ("\x00\x1b\x7f\x9b", "\\x00\\x1b\\x7f\\x9b"),
        ("\u202e\u2066\ufeff\u2029", "\\u202e\\u2066\\ufeff\\u2029"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
    ],
)
def test_text_is_made_safe(text: str, shown: str) -> None:
    assert safe(text) == shown


@pytest.mark.parametrize(
    ("span", "text"), [(0, "0 s"), (500_000, "0.5 s"), (119_000_000, "119 s"), (7_200_000_000, "2 h"), (10**12, "12 d")]
)
def test_spans_are_printed_for_people(span: int, text: str) -> None:
    assert span_text(span) == text


EXPLAINED = {
    "running": ("it is running", lambda shelf: shelf.abandon("k")),
    "lapsed": ("semel settle", lambda shelf: shelf.abandon("k", ago_us=HOUR_US)),
    "lapsed idempotent": (
        "same derived keys",
        lambda shelf: shelf.abandon("k", effects="idempotent", ago_us=HOUR_US),
    ),
    "succeeded": ("gets the stored answer", lambda shelf: shelf.succeed("k")),
    "expired": ("no longer kept", lambda shelf: shelf.succeed("k", ago_us=HOUR_US, answer_seconds=60)),
    "unknown": ("semel settle", lambda shelf: shelf.unknown("k")),
}


@pytest.mark.parametrize(("said", "make"), EXPLAINED.values(), ids=EXPLAINED)
def test_show_reports_what_a_retry_would_get(semel: Run, shelf: Shelf, said: str, make: Callable[[Shelf], str]) -> None:
    assert said in semel("show", make(shelf), "--json").document["nextAttempt"]


def test_settle_reports_what_a_retry_would_get(semel: Run, shelf: Shelf) -> None:
    for key, words, said in (
        ("a", ("--succeeded", "--no-answer"), "not kept"),
        ("b", ("--did-not-happen",), "a retry runs it"),
    ):
        operation_id = shelf.unknown(key, ago_us=HOUR_US)
        assert semel("settle", operation_id, *words, "--reason", "seen").code == 0
        assert said in semel("show", operation_id, "--json").document["nextAttempt"]


def test_a_damaged_record_is_still_shown(semel: Run, shelf: Shelf) -> None:
    operation_id = shelf.succeed("key-1")
    with closing(sqlite3.connect(shelf.path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints=1")
        connection.execute("UPDATE semel_record SET state = 99, effects = 98, created_at = 9000000000000000000")
    assert "DAMAGED (99)" in semel("list").out
    shown = semel("show", operation_id, "--json").document
    assert (shown["state"], shown["effects"]) == ("DAMAGED (99)", "DAMAGED (98)")
    assert "damaged" in shown["nextAttempt"]
    assert semel("settle", operation_id, "--did-not-happen", "--reason", "x", "--force").code == 1
    ran = semel("doctor", "--json")
    assert ran.code == 1
    assert "problem" in {found["level"] for found in ran.document["findings"] if found["check"] == "records"}


def test_a_terminal_that_cannot_show_a_character_gets_its_escape(shelf: Shelf) -> None:
    shelf.unknown("key-1", caller="東京")
    done = subprocess.run(
        [sys.executable, "-m", "semel.cli", "list", "--url", shelf.url],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert b"demo/\\u6771\\u4eac" in done.stdout


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    def print_styled(kind: type[StringIO]) -> str:
        stream = kind()
        Output(machine=False, stdout=stream).say_styled("red", "x\x1by")
        return stream.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert print_styled(Terminal) == "\x1b[31mx\\x1by\x1b[0m\n"
    assert print_styled(StringIO) == "x\\x1by\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert print_styled(Terminal) == "x\\x1by\n"


def test_people_read_retryable_and_machines_the_stored_name(semel: Run, shelf: Shelf) -> None:
    operation_id = shelf.unknown("key-1", ago_us=HOUR_US)
    assert semel("settle", operation_id, "--did-not-happen", "--reason", "no charge").code == 0
    assert semel("list").out.splitlines()[1].startswith("RETRYABLE  pay")
    assert semel("list", "--json").document["records"][0]["state"] == "FAILED_NOT_REPLAYABLE"
    for name in ("retryable", "failed_not_replayable"):
        assert [row["operationId"] for row in semel("list", "--state", name, "--json").document["records"]] == [
            operation_id
        ]
    assert "RETRYABLE (stored as FAILED_NOT_REPLAYABLE)" in semel("show", operation_id).out
    explained = semel("explain", operation_id).out
    assert "RETRYABLE: settled" in explained
    assert "and a retry runs it" in " ".join(explained.split())
    assert "1 retryable" in semel("doctor").out


def test_a_lapsed_record_is_marked_in_the_list(semel: Run, shelf: Shelf) -> None:
    shelf.abandon("key-1", ago_us=HOUR_US)
    shelf.succeed("key-2")
    lines = semel("list").out.splitlines()
    assert lines[1].startswith("SUCCEEDED  ")
    assert lines[2].startswith("PROCESSING, lapsed  ")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_wrapped_lines_with_a_hanging_indent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    shown = Terminal()
    text = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    Output(machine=False, stdout=shown).say_hanging("ok       store           ", text)
    lines = shown.getvalue().splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 60
    assert lines[0].startswith("ok       store           one two")
    assert all(line.startswith(" " * 25 + line.lstrip()) for line in lines[1:])
    plain = StringIO()
    Output(machine=False, stdout=plain).say_hanging("ok  ", text)
    assert plain.getvalue() == f"ok  {text}\n"


def test_unknown_and_lapsed_rows_are_coloured_on_a_terminal(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    shelf.unknown("key-1")
    shelf.abandon("key-2", ago_us=HOUR_US)
    shelf.succeed("key-3")
    shown = Terminal()
    assert list_command.run(parse(*grammar(), ["list", "--url", shelf.url]), Output(machine=False, stdout=shown)) == 0
    lines = shown.getvalue().splitlines()
    assert any(line.startswith("\x1b[31mUNKNOWN") for line in lines)
    assert any(line.startswith("\x1b[33mPROCESSING, lapsed") for line in lines)
    assert any(line.startswith("SUCCEEDED") for line in lines)
