"""A store that fails, is silent or dies at every single ask of a bulk: each item's effect is there once, or never."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from semel import Bulk, Engine
from semel.bulk.declaration import BulkItem
from semel.errors import SemelError
from semel.stores.clock import system_clock
from semel.testing.faults import KINDS, Crash, Faults, Kind, When, every_fault, faulty_sqlite
from tests.bulk.fellows import sqlite_at, sqlite_home
from tests.bulk.lists import number_items

ITEMS = 3


def _count(item: BulkItem) -> None:
    if item.place == 1:
        raise ValueError("this one fails")
    item.connection.execute("INSERT INTO effect VALUES (?)", (item.value["n"],))


@pytest.mark.parametrize(("kind", "when", "once"), KINDS)
def test_a_fault_at_every_ask(
    kind: Kind, when: When, once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.bulk.flow.retry_seconds", lambda tried, jitter: 0.0)
    empty = tmp_path / "empty.db"
    sqlite_home(str(empty))
    for fault in every_fault(kind, when, once=once):
        path = str(shutil.copy(empty, tmp_path / f"{fault.n}.db"))
        home = sqlite_at(path)
        faults = Faults(fault)
        faulty = faulty_sqlite(path, system_clock, faults, busy_seconds=0.2)
        with suppress(SemelError, Crash, sqlite3.Error):
            _run(Engine(faulty.backend, confirm_seconds=0.0))
        faulty.bury()
        home.fetch("UPDATE semel_record SET lease_until = 1 WHERE state = 1")  # what its lease would have become
        with Engine(faulty_sqlite(path, system_clock, Faults()).backend) as healthy:
            done = _run(healthy)
            assert done == (ITEMS, ITEMS - 1, 1), str(fault)
        assert home.effects() == [0, 2], str(fault)
        [[items]] = home.fetch("SELECT count(*) FROM semel_item")
        assert items == ITEMS, str(fault)
        if faults.clean:
            break


def _run(engine: Engine) -> tuple[int, int, int]:
    bulk = Bulk(engine, operation="count", effects="atomic", chunk_items=2)
    tally = bulk.run(number_items(ITEMS), _count, key="k", caller="alice", wait_seconds=0).tally
    return tally.done, tally.succeeded, tally.failed


def test_a_handler_that_commits_itself_is_refused(tmp_path: Path) -> None:
    """On SQLite a COMMIT is denied; its item fails, and nothing is committed early."""
    home = sqlite_home(str(tmp_path / "bulk.db"))

    def commits(item: BulkItem) -> None:
        item.connection.execute("INSERT INTO effect VALUES (?)", (item.value["n"],))
        item.connection.commit()
        if item.place == 1:
            with pytest.raises(sqlite3.DatabaseError):
                item.connection.execute("COMMIT")
            raise ValueError

    with Engine(home.backend("sqlite")) as engine:
        bulk = Bulk(engine, operation="count", effects="atomic")
        assert bulk.run(number_items(3), commits, key="k", caller="alice").tally.failed == 1
    assert home.effects() == [0, 2]
