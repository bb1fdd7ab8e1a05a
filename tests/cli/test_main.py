"""The command line itself: its grammar, exit codes and errors, and the commands `migrate`, `purge` and `doctor`."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from semel import Answer, Engine, __version__
from semel.cli import commands
from semel.cli.main import MODULES, grammar, main
from semel.stores.sqlite import doctor as doctor_sqlite
from tests.cli.conftest import HOUR_US, Ran, Shelf

Run = Callable[..., Ran]
COMMANDS = sorted(grammar()[1].choices)


def test_the_version_option_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"semel {__version__}\n"


def test_the_commands_are_listed() -> None:
    own = ["completion", "config", "demo", "doctor", "explain", "export", "list", "migrate", "purge", "serve", "settle"]
    assert set(COMMANDS) >= {*own, "imports", "show", "watch"}


def test_each_command_is_the_file_of_its_name() -> None:
    assert {name: module.rpartition(".")[2] for name, module in MODULES.items()} == {name: name for name in MODULES}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_in_the_file_of_its_name(command: str) -> None:
    """So that a person who knows only its name opens the right file."""
    *room, folder, file = grammar()[1].choices[command].get_default("run").__module__.split(".")
    assert room == ["semel", "cli", "commands"]
    assert folder in (commands.__doc__ or "")
    if file != command:
        assert f"`semel {command}`" in (commands.__doc__ or "")
        assert f"``{folder}/{file}.py``" in (commands.__doc__ or "")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_built_without_the_others(name: str) -> None:
    """The table names the module that declares it; all that this module declares, and nothing else, is there."""
    alone, everything = grammar(name)[1].choices, grammar()[1].choices
    assert name in alone
    assert set(alone) == {each for each in everything if MODULES[each] == MODULES[name]}
    assert alone[name].format_help() == everything[name].format_help()


def test_a_process_imports_only_the_requested_command() -> None:
    probe = "import sys; from semel.cli.main import main; main(['size', '--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    made = {name for name in done.stdout.splitlines()[-1].split() if name.startswith("semel.cli.commands.")}
    assert made == {"semel.cli.commands.stores", "semel.cli.commands.stores.size"}


def test_help_before_a_command_describes_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", "size"]) == 0
    assert "semel demo" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_has_examples_and_exit_codes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "examples:\n  semel " in text
    assert "exit codes:" in text  # the table is in the first page, the others name it
    assert ("  130  interrupted" in text) is (arguments == ["--help"])


WRONG = {
    "no command": ([], "a command is missing"),
    "unknown command": (["lst"], "did you mean 'list'"),
    "far off": (["frobnicate"], "known are"),
    "unknown option": (["list", "--operaton", "x"], "did you mean '--operation'"),
    "abbreviated option": (["list", "--oper", "x"], "unknown option '--oper'"),
    "unknown option far from all": (["watch", "--once"], "unknown option '--once' (see semel watch --help)"),
    "choice missing": (["metrics"], "{rules,dashboard,gauges}"),
    "one too many": (["list", "extra"], "'extra'"),
    "url without value": (["list", "--url"], "--url"),
    "url without scheme": (["list", "--url", "semel.db"], "scheme"),
    "url scheme": (["--url", "sqlit:///x.db", "list"], "did you mean 'sqlite'"),
    "url two slashes": (["--url", "sqlite://x.db", "list"], "three slashes"),
    "url option": (["--url", "sqlite:///x.db?sync=FULL", "list"], "'sync'"),
    "memory": (["--url", "memory://", "list"], "memory://"),
    "state": (["list", "--state", "unkown"], "did you mean 'unknown'"),
    "limit zero": (["list", "--limit", "0"], "--limit"),
    "limit large": (["list", "--limit", "1001"], "--limit"),
    "limit text": (["list", "--limit", "ten"], "--limit"),
    "limit digits": (["list", "--limit", "\u0661"], "--limit"),
    "before": (["list", "--before", "-1"], "--before"),
    "show nothing": (["show"], "OPERATION_ID"),
    "show both": (["show", "0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55", "--key", "x"], "not both"),
    "show key alone": (["show", "--key", "x"], "--tenant"),
    "show no uuid": (["show", "zz"], "OPERATION_ID"),
    "show bad key": (["show", "--key", "a b", "--tenant", "t", "--caller", "c", "--operation", "o"], "--key"),
    "option of two dashes": (["list", "--state=--"], "argument --state: expected one argument"),
    "file of two dashes": (["export", "--output=--"], "argument --output: expected one argument"),
    "bytes in an option": (["list", "--operation", "caf\udce9"], "argument --operation: must be valid text"),
    "bytes in a name": (["imports", "show", "caf\udce9"], "argument IMPORT: must be valid text"),
    "bytes in a header": (
        ["send", "--header", "A: 1", "--header", "\udce9"],
        "argument --header: must be valid text",
    ),
    "chunk": (["purge", "--chunk", "0"], "--chunk"),
    "port": (["serve", "--port", "65536"], "--port"),
    "workers": (["serve", "--workers", "0"], "--workers"),
}


@pytest.mark.parametrize("machine", [False, True], ids=["text", "json"])
@pytest.mark.parametrize(("arguments", "named"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_get_one_line_and_code_2(
    arguments: list[str],
    named: str,
    machine: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    shelf: Shelf,
) -> None:
    monkeypatch.setenv("SEMEL_URL", shelf.url)
    assert main([*arguments, "--json"] if machine and arguments[-1:] != ["--url"] else arguments) == 2
    said = capsys.readouterr()
    assert named in said.err
    assert len(said.err.splitlines()) == 1
    if said.out:
        assert json.loads(said.out)["exitCode"] == 2


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("PORT", "http", "PORT"),
        ("SEMEL_WORKERS", "many", "SEMEL_WORKERS"),
        ("SEMEL_DEMO", "maybe", "SEMEL_DEMO"),
        ("SEMEL_URL", "postgres", "scheme"),
        ("SEMEL_URL", "memory://", "sqlite:///"),
        ("SEMEL_ID_SECRET_FILE", "/no/such/file", "SEMEL_ID_SECRET_FILE"),
        ("HOST", "256.256.256.256", "HOST"),
    ],
)
def test_a_wrong_variable_is_named(
    name: str, value: str, named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, shelf: Shelf
) -> None:
    monkeypatch.setenv("SEMEL_URL", shelf.url)
    monkeypatch.setenv(name, value)
    assert main(["serve"]) == 2
    assert named in capsys.readouterr().err


def test_migrating_twice_is_safe(semel: Run, shelf: Shelf) -> None:
    shelf.path.unlink()
    assert semel("migrate", "--json").document == {
        "migrations": ["0001_first", "0002_many_effects", "0003_imports", "quotas", "waiting_messages"]
    }
    assert semel("migrate").out == "the store is up to date: nothing to do\n"


@pytest.mark.parametrize(
    "arguments", [["list"], ["doctor"], ["purge"], ["show", "0199e0c4-7d3a-7a52-9f0e-6f2f4e1f6a55"]]
)
def test_a_store_that_cannot_be_used_is_code_3_with_the_remedy(
    arguments: list[str], semel: Run, shelf: Shelf, tmp_path: Path
) -> None:
    shelf.path.unlink()
    missing = semel(*arguments)
    assert missing.code == 3
    assert "semel migrate" in missing.err + missing.out
    shelf.path.write_bytes(b"this is no database, whatever its name says" * 50)
    damaged = semel(*arguments)
    assert damaged.code == 3
    assert "not a SQLite database" in damaged.err + damaged.out


def test_another_id_secret_is_refused(semel: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(os.urandom(32))
    monkeypatch.setenv("SEMEL_ID_SECRET_FILE", str(secret))
    ran = semel("list")
    assert ran.code == 3
    assert "id secret" in ran.err


def test_the_right_id_secret_finds_keys(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(bytes(range(32)))
    monkeypatch.setenv("SEMEL_ID_SECRET_FILE", str(tmp_path / "secret"))
    monkeypatch.setenv("SEMEL_URL", f"sqlite:///{tmp_path / 'secret.db'}")
    assert main(["migrate"]) == 0
    assert main(["doctor"]) == 0


def test_a_purge_deletes_expired_rows_and_reports_them(semel: Run, shelf: Shelf) -> None:
    shelf.succeed("kept")
    shelf.succeed("dropped", ago_us=HOUR_US, answer_seconds=60)
    shelf.succeed("forgotten", ago_us=HOUR_US, answer_seconds=60, tombstone_seconds=120)
    shelf.unknown("never", ago_us=1000 * HOUR_US, answer_seconds=60, tombstone_seconds=120)
    ran = semel("purge", "--json", "--chunk", "2", "--progress", "--clock-is-right")
    assert {name: count for name, count in ran.document.items() if count} == {
        **{"scanned": 4, "answersDropped": 1, "recordsForgotten": 1}
    }
    assert ran.err.startswith("purge: 2 of 4, ")
    again = semel("purge", "--clock-is-right")
    assert "0 answers dropped, 0 records forgotten" in again.out
    assert again.err == ""  # no terminal, and it was not requested


def findings(ran: Ran) -> dict[str, str]:
    return {found["check"]: found["level"] for found in ran.document["findings"]}


def test_doctor_finds_a_healthy_store_healthy(semel: Run, shelf: Shelf) -> None:
    shelf.succeed("one")
    ran = semel("doctor", "--json")
    assert ran.code == 0
    assert ran.document["healthy"] is True
    assert set(findings(ran)) >= {
        *("store", "identity", "journal", "synchronous", "integrity", "disk", "clock", "records", "unknown", "lapsed")
    }
    assert "healthy" in semel("doctor").out


def test_every_finding_has_a_remedy(semel: Run, shelf: Shelf) -> None:
    shelf.unknown("lost", ago_us=HOUR_US)
    shelf.abandon("stuck", ago_us=HOUR_US)
    shelf.abandon("running", effects="idempotent", ago_us=HOUR_US)
    shelf.succeed("ahead", ago_us=-HOUR_US)
    ran = semel("doctor", "--json")
    assert ran.code == 1
    bad = [found for found in ran.document["findings"] if found["level"] in ("warning", "problem")]
    assert {found["check"] for found in bad} == {"unknown", "lapsed", "clock"}
    assert all(found["remedy"] for found in bad)
    text = semel("doctor").out
    assert "WARNING  unknown" in text
    assert "semel settle" in text


def test_a_weaker_promise_and_a_full_disk_are_found(
    shelf: Shelf, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(shelf.path.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1024))
    assert main(["doctor", "--json", "--url", f"{shelf.url}?synchronous=NORMAL"]) == 1
    found = findings(Ran(1, capsys.readouterr().out, ""))
    assert (found["synchronous"], found["disk"]) == ("warning", "problem")


def test_a_clock_that_was_never_set_is_found(semel: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000)
    assert findings(semel("doctor", "--json"))["clock"] == "problem"


def test_a_closed_pipe_ends_quietly(shelf: Shelf) -> None:
    with Engine.connect(shelf.url):
        pass
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "semel.cli", "list", "--url", shelf.url],
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_damage_inside_the_file_is_found(semel: Run, shelf: Shelf) -> None:
    for number in range(200):
        shelf.succeed(f"key-{number}")
    with closing(sqlite3.connect(shelf.path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw = bytearray(shelf.path.read_bytes())
    page = 4096 * (len(raw) // 4096 // 2)
    raw[page : page + 4096] = os.urandom(4096)
    shelf.path.write_bytes(raw)
    ran = semel("doctor", "--json")
    assert ran.code in (1, 3)
    assert "damaged" in ran.out


def test_another_journal_and_a_large_log_are_found(semel: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(shelf.path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    assert findings(semel("doctor", "--json"))["journal"] == "warning"
    semel("migrate")
    assert findings(semel("doctor", "--json"))["journal"] == "ok"
    with shelf.engine() as engine:
        engine.run(shelf.command("key-1"), lambda permit: Answer(201, (), b"paid"))
        monkeypatch.setattr(doctor_sqlite, "WAL_BYTES_MAX", 0)
        monkeypatch.setattr(doctor_sqlite, "CHECKED_BYTES_MAX", 0)
        found = findings(semel("doctor", "--json"))
    assert (found["wal"], found["integrity"]) == ("warning", "note")
