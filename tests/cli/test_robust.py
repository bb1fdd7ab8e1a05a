"""What users do to a command line: closed streams, Ctrl-C, files that are locked, missing, or something else."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import semel.cli
from semel.cli import __main__ as script
from semel.cli.main import grammar, main
from tests.cli.conftest import HOUR_US, Ran, Shelf

Run = Callable[..., Ran]
ID = "0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55"
# One call of every command that goes to a store.
CALLS = {
    "migrate": ["migrate"],
    "list": ["list"],
    "show": ["show", ID],
    "explain": ["explain", "some-key"],
    "config": ["config"],
    "settle": ["settle", ID, "--did-not-happen", "--reason", "x"],
    "watch": ["watch", "--count", "1"],
    "messages": ["messages"],
    "purge": ["purge"],
    "doctor": ["doctor"],
    "export": ["export"],
    "move": ["move", "--to", "sqlite:///target.db"],
    "operation": ["operation", ID],
    "bulk": ["bulk", ID],
    "events": ["events", "list"],
    "imports": ["imports", "list"],
    "reseal": ["reseal", "--plain"],
    "worker": ["worker", "--once"],
    "census": ["census"],
    "top": ["top", "--by", "doubt"],
    "metrics": ["metrics", "gauges"],
}


def run(*arguments: str, **streams: int) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "semel.cli", *arguments],
        stdout=streams.get("stdout", subprocess.PIPE),
        stderr=streams.get("stderr", subprocess.PIPE),
        timeout=60,
        check=False,
    )


def test_every_command_that_opens_a_store_is_tested() -> None:
    elsewhere = {
        "serve",
        "demo",
        "completion",
        "check",
        "console",
        "gate",
        "gateway",
        "openapi",
        "conform",
        "send",
        "size",
        "proxy",
    }
    assert set(CALLS) | elsewhere >= set(grammar()[1].choices)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("path", ["", "folder", "no/such/folder/semel.db", "text.txt"], ids=repr)
def test_a_file_that_is_no_store_is_one_line(
    call: list[str], path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.txt").write_text("not a database, but a text of some length\n" * 200, "utf-8")
    code = main([*call, "--url", f"sqlite:///{path}"])
    said = capsys.readouterr()
    assert code in (2, 3)
    assert "Traceback" not in said.err + said.out
    assert len(said.err.splitlines()) == (0 if call == ["doctor"] and code == 3 else 1)


@pytest.fixture
def busy_url(shelf: Shelf) -> Iterator[str]:
    """The URL of a store whose file another process writes to, without end."""
    with closing(sqlite3.connect(shelf.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield f"{shelf.url}?busy_seconds=0"
        other.execute("ROLLBACK")


@pytest.mark.parametrize(
    ("call", "code"),
    [
        *((["list"], 0), (["watch", "--count", "1"], 0), (["export"], 0), (["doctor"], 0), (["config"], 0)),
        *((["explain", "nobody"], 4), (["settle", ID, "--did-not-happen", "--reason", "x"], 4), (["migrate"], 3)),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else str(value),
)
def test_a_locked_file_is_read_and_a_write_is_refused(
    call: list[str], code: int, busy_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*call, "--url", busy_url]) == code
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    if code == 3:
        assert "locked" in said.err


def test_a_purge_of_a_locked_file_is_refused(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    shelf.succeed("due", ago_us=HOUR_US, answer_seconds=60, tombstone_seconds=60)
    with closing(sqlite3.connect(shelf.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert main(["purge", "--url", f"{shelf.url}?busy_seconds=0"]) == 3
        other.execute("ROLLBACK")
    assert "locked by another writer" in capsys.readouterr().err


# --- real processes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [["list"], ["--help"], ["export"], ["list", "--nope"], ["list", "--json", "--nope"]], ids=" ".join
)
def test_a_closed_output_stream_ends_the_command_quietly(arguments: list[str], shelf: Shelf) -> None:
    shelf.succeed("one")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        url = [] if "--help" in arguments else ["--url", shelf.url]
        done = run(*arguments, *url, stdout=writing)
        assert b"Traceback" not in done.stderr
        assert b"Exception ignored" not in done.stderr
        both = run(*arguments, *url, stdout=writing, stderr=writing)
    finally:
        os.close(writing)
    assert done.returncode in (0, 2)
    assert both.returncode in (0, 2)


def test_a_process_started_without_streams_works(shelf: Shelf) -> None:
    command = f'exec "{sys.executable}" -m semel.cli list --url "{shelf.url}" >&- 2>&-'
    assert subprocess.run(["sh", "-c", command], timeout=60, check=False).returncode == 0


def test_a_full_disk_behind_stdout_is_reported(shelf: Shelf) -> None:
    shelf.succeed("one")
    with open("/dev/full", "wb") as full:
        done = run("list", "--url", shelf.url, stdout=full.fileno())
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


def test_ctrl_c_prints_one_word_and_exits_with_130(shelf: Shelf, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.py"
    os.mkfifo(fifo)
    (tmp_path / "held.py").write_text(f"open({str(fifo)!r}).read()", "utf-8")  # held until we write
    with (
        subprocess.Popen(
            [sys.executable, "-m", "semel.cli", "config", "held:app"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
        fifo.open("wb"),
    ):  # returns once it is being read
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"semel: interrupted\n")


def test_ctrl_c_while_modules_are_imported_prints_one_word_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "semel.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delattr(semel.cli, "main")
    monkeypatch.delitem(sys.modules, "semel.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])

    assert (script.main(), *capsys.readouterr()) == (130, "", "semel: interrupted\n")
