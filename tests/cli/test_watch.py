"""`semel watch`: what two looks tell, a store that goes away and comes back, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from semel.admin import snapshot as watched
from semel.cli.commands.records import watch as watching
from semel.cli.main import main
from tests.cli.conftest import HOUR_US, Ran, Shelf
from tests.cli.everything import fill, fresh

Run = Callable[..., Ran]


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have acts done between the looks, instead of waiting."""

    def plan(*acts: Callable[[], object]) -> None:
        left: Iterator[Callable[[], object]] = iter(acts)
        monkeypatch.setattr(watching, "rest", lambda seconds: next(left)())

    return plan


def test_two_polls_give_rates(semel: Run, shelf: Shelf, between: Callable[..., None]) -> None:
    shelf.succeed("before", ago_us=HOUR_US)
    held = shelf.abandon("held", ago_us=HOUR_US)

    def work() -> None:
        shelf.succeed("one")
        shelf.succeed("two")
        shelf.unknown("three")

    between(work, lambda: None)
    ran = semel("watch", "--count", "3", "--json")
    first, second, third = [json.loads(line) for line in ran.out.splitlines()]
    assert (ran.code, ran.err) == (0, "")
    assert (first["newRecords"], first["settledNet"], first["seconds"]) == (None, None, None)
    assert (first["open"], first["lapsed"], first["oldestOpen"]) == (1, 1, held)
    assert 3600 <= first["oldestOpenSeconds"] < 3700
    assert (second["newRecords"], second["settledNet"], second["unknown"]) == (3, 2, 1)
    assert (third["newRecords"], third["settledNet"]) == (0, 0)
    assert second["records"] == {
        **{"CLAIMED": 0, "PROCESSING": 1, "SUCCEEDED": 3, "FAILED_REPLAYABLE": 0},
        **{"FAILED_NOT_REPLAYABLE": 0, "UNKNOWN": 1},
    }
    assert not any("replay" in name.lower() and "FAILED" not in name for name in second)  # a store cannot know


def test_without_a_terminal_each_poll_prints_a_line(semel: Run, shelf: Shelf, between: Callable[..., None]) -> None:
    between(lambda: shelf.succeed("one"))
    first, second = semel("watch", "--count", "2").out.splitlines()
    assert first.endswith("0 records, 0 open, 0 lapsed, 0 unknown")
    assert "1 records" in second
    assert "1 new (" in second
    assert "settled +1 net (" in second


def test_more_than_can_be_counted_is_reported(
    semel: Run, shelf: Shelf, between: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "PAGE", 2)
    monkeypatch.setattr(watched, "COUNTED_MAX", 2)
    between(lambda: [shelf.abandon(f"key-{number}") for number in range(5)])
    _, second = semel("watch", "--count", "2").out.splitlines()
    assert "at least 2 open" in second
    assert "at least 2 new" in second


def test_a_store_that_becomes_unreachable_is_reported_and_waited_for(
    semel: Run, shelf: Shelf, between: Callable[..., None]
) -> None:
    shelf.succeed("one")
    away = shelf.path.with_name("away")
    between(lambda: shelf.path.rename(away), lambda: None, lambda: away.rename(shelf.path))
    ran = semel("watch", "--count", "4")
    lines = ran.out.splitlines()
    assert ran.code == 0
    assert [line.startswith("the store does not answer") for line in lines] == [False, True, True, False, False]
    assert lines[3] == "the store answers again"
    assert "1 records" in lines[4]


def test_watch_exits_with_3_if_the_store_is_unreachable_or_missing(
    semel: Run, shelf: Shelf, between: Callable[..., None]
) -> None:
    between(shelf.path.unlink)
    ran = semel("watch", "--count", "2", "--json")
    assert ran.code == 3
    assert "migrate" in json.loads(ran.out.splitlines()[1])["error"]
    never = semel("watch")
    assert never.code == 3
    assert "migrate" in never.err


def test_another_store_at_the_same_url_ends_the_watch(semel: Run, shelf: Shelf, between: Callable[..., None]) -> None:
    shelf.succeed("one")

    other = shelf.path.with_name("other.db")
    Shelf(other)
    between(lambda: shutil.copy(other, shelf.path))
    ran = semel("watch", "--count", "2")
    assert "this URL now leads to a different store" in ran.out
    assert "new (" not in ran.out


def test_a_slow_poll_is_followed_by_a_long_rest(semel: Run, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 3.0])  # a look of three seconds
    rests: list[float] = []
    monkeypatch.setattr(time, "monotonic", lambda: next(times, 3.0))
    monkeypatch.setattr(watching, "look", lambda engine, before: watched.Look("s", 1, {}, (), (), (), False, False))
    monkeypatch.setattr(watching, "rest", rests.append)
    assert semel("watch", "--count", "2", "--every", "2").code == 0
    assert rests == [30.0]


# --- real processes -----------------------------------------------------------------------------


def start_watch(shelf: Shelf, *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "semel.cli", "watch", *arguments, "--url", shelf.url]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE)


def test_ctrl_c_ends_it_cleanly(shelf: Shelf) -> None:
    with start_watch(shelf, "--every", "60") as process:
        assert process.stdout is not None
        assert b"0 records" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, b"")


def test_a_closed_pipe_ends_the_watch_quietly(shelf: Shelf) -> None:
    with start_watch(shelf, "--every", "0.1") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=30) == 0
        assert process.stderr.read() == b""


def test_a_terminal_is_redrawn(shelf: Shelf) -> None:
    lost = shelf.unknown("lost", caller="x\x1b[2J" + "y" * 60)
    ours, theirs = pty.openpty()
    try:
        with start_watch(shelf, "--count", "2", "--every", "0.1", stdout=theirs) as process:
            os.close(theirs)
            shown = b""
            while True:
                try:
                    piece = os.read(ours, 65536)
                except OSError:  # Linux's way to say that the other side is closed
                    break
                if not piece:
                    break
                shown += piece
            assert process.wait(timeout=30) == 0
    finally:
        os.close(ours)
    assert shown.count(b"\x1b[H") == 2
    assert b"\x1b[2J" not in shown
    assert b"needs attention: 1" in shown
    [row, *_] = [line for line in shown.split(b"\r\n") if lost.encode() in line] or [b"a cut id finds nothing"]
    assert row.endswith("…\x1b[K".encode()), "what is cut is marked"
    assert b"`replays` event" in shown


def test_the_backlog_of_outbox_and_inbox_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = fresh(f"sqlite:///{tmp_path / 'all.db'}")
    assert main(["watch", "--count", "1", "--url", url]) == 0
    quiet = capsys.readouterr().out
    assert "events" not in quiet
    assert "messages" not in quiet
    fill(url)
    assert main(["watch", "--count", "1", "--url", url]) == 0
    told = capsys.readouterr().out
    assert "4 events waiting (oldest " in told
    assert "1 events parked" in told
    assert "1 messages tried" in told
    assert "1 messages parked (oldest " in told
    assert main(["watch", "--count", "1", "--json", "--url", url]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["events"]["waiting"], document["events"]["parked"]) == (4, 1)
    assert document["events"]["oldestSeconds"] >= 0
    assert (document["messages"]["tried"], document["messages"]["parked"]) == (1, 1)
    assert document["messages"]["oldestParkedSeconds"] >= 0
