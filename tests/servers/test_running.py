"""Where the data of a run's servers is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest

from tests.servers.postgres import postgres
from tests.servers.running import ENVIRONMENT, PREFIX, begin_run, end_run, in_memory


def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_a_run_has_its_folder_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "")
    folder = begin_run(in_memory(tmp_path, room_bytes=0))
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o7777 == 0o755
    assert os.environ[ENVIRONMENT] == str(folder)
    assert in_memory(tmp_path, room_bytes=0) == tmp_path
    assert folder.exists()  # its process lives
    end_run(folder)
    assert not folder.exists()


def test_leftovers_of_a_dead_run_are_removed(tmp_path: Path) -> None:
    alive, dead = tmp_path / f"{PREFIX}{os.getppid()}-a1", tmp_path / f"{PREFIX}{dead_pid()}-b2"
    for each in (alive, dead):
        each.mkdir()
    in_memory(tmp_path, room_bytes=0)
    assert list(tmp_path.iterdir()) == [alive]


@pytest.mark.parametrize(("memory", "room_bytes"), [(None, 1 << 60), (Path("/nowhere"), 0)], ids=["room", "folder"])
def test_without_shared_memory_the_folder_is_on_disk(tmp_path: Path, memory: Path | None, room_bytes: int) -> None:
    assert in_memory(memory or tmp_path, room_bytes) is None


def test_on_a_noexec_mount_the_folder_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    assert in_memory(tmp_path, room_bytes=0) is None


def test_a_killed_postgresql_leaves_nothing_outside_of_its_folder() -> None:
    """Its segments would stay in /dev/shm, a megabyte each, without an owner."""
    with psycopg.connect(postgres()) as connection:
        assert connection.execute("SHOW dynamic_shared_memory_type").fetchone() == ("mmap",)
