"""The store conformance suite: the executable definition of a store (``core/contract.py`` is its signature).

``CASES`` are functions of a :class:`~semel.testing.bench.Bench`; the suite takes only a maker of subjects. A store
declares its abilities in its ``capabilities``, which each case reads and checks; no case is ever skipped. For a store
of your own, with pytest:

    @pytest.mark.parametrize("mode", ["sync", "async"])
    @pytest.mark.parametrize("name", conformance.CASES)
    def test_conformance(name, mode, tmp_path):
        conformance.run(name, lambda clock: my_subject(tmp_path, clock), mode)
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final

from semel.core.model import Record
from semel.stores.backend import Backend
from semel.stores.memory.driver import LocalDriver
from semel.stores.memory.store import MemoryStore
from semel.stores.sqlite.driver import SqliteDriver
from semel.stores.sqlite.url import sqlite_backend
from semel.testing.bench import Bench, MakeSubject, Mode, Subject, bench
from semel.testing.cases import claims, quotas, races, settlements, upkeep
from semel.testing.clock import SettableClock

Case = Callable[[Bench], None]

CASES: Final[Mapping[str, Case]] = {
    case.__name__: case for case in (*claims.ALL, *settlements.ALL, *upkeep.ALL, *races.ALL, *quotas.ALL)
}
"""Every case by its name, which says what must hold."""


def run(name: str, make: MakeSubject, mode: Mode) -> None:
    """Run one case on a new store; an AssertionError names the failure.

    Parameters: ``name`` of the case; ``make`` makes a new, empty subject on the given clock; ``mode`` the half of the
    driver to use, sync or async.
    """
    if not __debug__:
        raise RuntimeError("the suite is made of assertions: run it without -O")
    with bench(make, mode) as ready:
        CASES[name](ready)


def memory_subject(clock: SettableClock) -> Subject:
    """Make a subject of the memory store."""
    driver = LocalDriver(clock=clock)

    def corrupt(row: Record) -> None:
        driver._table.records[row.id] = row

    return Subject(Backend("memory", MemoryStore(), driver), corrupt, lambda: memory_subject(clock).backend)


def sqlite_subject(path: str, clock: SettableClock, *, synchronous: str = "OFF") -> Subject:
    """Make a subject of SQLite on a new file. By default no commit waits for the disk: the suite crashes no
    machines."""

    def open_backend() -> Backend:
        return sqlite_backend(SqliteDriver(path, synchronous=synchronous, clock=clock))

    def corrupt(row: Record) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(
                "UPDATE semel_record SET state = ?, body = ? WHERE id = ?", (row.state, row.body, row.id)
            )

    return Subject(open_backend(), corrupt, open_backend)
