"""Forking with an open engine: each process has its own connections, threads and leases, or an error says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.crash.forks import READING_FORKS
from tests.crash.processes import run_script
from tests.crash.work import Folder


def run(scenario: str, tmp_path: Path) -> dict[str, Any]:
    Folder(tmp_path).create()
    return run_script("forks", folder=str(tmp_path), scenario=scenario, timeout=20)


def test_a_child_keeps_its_answers_when_the_parent_closes(tmp_path: Path) -> None:
    """SQLite inherits the parent's locks in memory only: without care the parent deletes the child's log."""
    found = run("closing_parent", tmp_path)

    assert found == {"told": ["told", "after"], "seen": 3}


def test_parent_and_child_renew_and_settle_what_they_hold(tmp_path: Path) -> None:
    found = run("live_permits", tmp_path)

    assert found["parent"]["settled"] == found["child"]["settled"] == "Settled"
    assert found["parent"]["left"] > 0
    assert int(found["child"]["left"]) > 0
    assert found["replayed"] == "child"


def test_fork_and_replay_work_on_event_loops(tmp_path: Path) -> None:
    found = run("live_loop", tmp_path)

    assert found["parent"]["settled"] == found["child"]["settled"] == "Settled"
    assert found["parent"]["left"] > 0
    assert int(found["child"]["left"]) > 0
    assert found["replayed"] == "childs"


def test_a_fork_inside_an_atomic_command(tmp_path: Path) -> None:
    found = run("atomic_parent", tmp_path)

    assert [words[0] for words in found["said"]] == ["refused", "refused"]
    assert all("after_the_fork" in words[1] for words in found["said"])
    assert found["beside"] == "database is locked"
    assert found["settled"] == "Settled"
    assert Folder(tmp_path).business() == {"atomic": 1}


def test_forks_out_of_a_busy_process(tmp_path: Path) -> None:
    found = run("busy_parent", tmp_path)

    assert sum(found["ends"].values()) == 20
    assert found["ends"]["failed"] == 0
    assert found["stored"] == found["ran"] + found["ends"]["ran"]


def test_forks_out_of_a_process_that_reads(tmp_path: Path) -> None:
    """No child hangs in SQLite on what a thread of its parent had locked in memory, nor finds the file still open."""
    found = run("reading_parent", tmp_path)

    assert found["ends"] == {"read": READING_FORKS}


def test_an_engine_made_before_the_fork_and_opened_after_it(tmp_path: Path) -> None:
    found = run("preload", tmp_path)

    assert [words[0][2] for words in found["told"]] == ["shared"] * 3
    assert found["stored"] == 4


def test_a_memory_store_refuses_in_a_child(tmp_path: Path) -> None:
    found = run("memory", tmp_path)

    [[word, why]] = found["said"]
    assert word == "refused"
    assert "memory://_store_cannot_be_used_after_fork" in why
    assert found["parent"] == "after"
