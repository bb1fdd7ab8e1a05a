"""Real processes and SIGKILL: in an item's handler, before and after a chunk's commit; and two runners on one bulk."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bulk.fellows import Home, postgres_home, sqlite_home
from tests.bulk.worker import CHUNK, ITEMS
from tests.servers.postgres import postgres, schema


def _place(store: str, folder: Path) -> tuple[str, Home]:
    if store == "sqlite":
        path = str(folder / "bulk.db")
        return f"sqlite:///{path}", sqlite_home(path)
    home = postgres_home()
    return f"{postgres()}?schema={schema()}", home


def _begin(url: str, dies_at: str, *by: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bulk.worker", url, dies_at, *by], stdout=subprocess.PIPE, text=True
    )


def _end(worker: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = worker.communicate(timeout=60)
    return worker.returncode, said.strip()


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_bulk_killed_repeatedly_handles_each_item_once(store: str, tmp_path: Path) -> None:
    """Each run finds what the last one committed, to the item; the next one waits for its lease of a second."""
    url, home = _place(store, tmp_path)
    deaths = {"item:57": 50, "before:1": 50, "after:2": 70, "item:99": 90, "after:1": 100}
    for dies_at, committed in deaths.items():
        code, _ = _end(_begin(url, dies_at))
        assert code == -signal.SIGKILL, dies_at
        assert home.effects() == list(range(committed)), dies_at
        assert home.fetch("SELECT done FROM semel_bulk")[0][0] == committed
    assert _end(_begin(url, "never")) == (0, f"{ITEMS} False")
    assert _end(_begin(url, "never")) == (0, f"{ITEMS} True")
    assert home.effects() == list(range(ITEMS))
    assert home.fetch("SELECT count(*) FROM semel_item WHERE state = 3")[0][0] == ITEMS
    assert CHUNK * 10 == ITEMS


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_rows_of_an_orm_and_their_outcomes_are_committed_together(store: str, tmp_path: Path) -> None:
    url, home = _place(store, tmp_path)
    for dies_at, committed in {"item:57": 50}.items():
        code, _ = _end(_begin(url, dies_at, "orm"))
        assert code == -signal.SIGKILL, dies_at
        assert home.effects() == list(range(committed)), dies_at
        assert home.fetch("SELECT count(*) FROM semel_item WHERE state = 3")[0][0] == committed
    assert _end(_begin(url, "never", "orm")) == (0, f"{ITEMS} False")
    assert home.effects() == list(range(ITEMS))


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_two_runners_on_one_bulk_handle_each_item_once(store: str, tmp_path: Path) -> None:
    """One runs it, the other waits and gets its answer; and where the first dies, the other continues."""
    url, home = _place(store, tmp_path)
    ends = [_end(worker) for worker in [_begin(url, "item:33"), _begin(url, "never"), _begin(url, "never")]]
    assert [code for code, _ in ends].count(0) >= 2
    assert f"{ITEMS} False" in [said for _, said in ends]
    assert home.effects() == list(range(ITEMS))
