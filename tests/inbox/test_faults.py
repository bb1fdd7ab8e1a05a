"""A store that fails, is silent or dies at every single ask of a message: its effect is there once, or never."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from semel import Engine, Inbox
from semel.errors import SemelError
from semel.inbox.run import Message
from semel.inbox.store import Receipt
from semel.stores.clock import system_clock
from semel.testing.faults import KINDS, Crash, Faults, Kind, When, every_fault, faulty_sqlite
from tests.bulk.fellows import sqlite_at, sqlite_home


def _write(message: Message) -> None:
    message.connection.execute("INSERT INTO effect (n) SELECT count(*) FROM effect")


def _stumble(message: Message) -> None:
    _write(message)
    raise ValueError


@pytest.mark.parametrize(("kind", "when", "once"), KINDS)
def test_a_fault_at_every_ask(kind: Kind, when: When, once: bool, tmp_path: Path) -> None:
    empty = tmp_path / "empty.db"
    sqlite_home(str(empty))
    for fault in every_fault(kind, when, once=once):
        path = str(shutil.copy(empty, tmp_path / f"{fault.n}.db"))
        faults = Faults(fault)
        faulty = faulty_sqlite(path, system_clock, faults, busy_seconds=0.2)
        inbox = Inbox(Engine(faulty.backend), consumer="billing", tries_max=9)
        for handler in (_stumble, _write, _write):
            with suppress(SemelError, Crash, sqlite3.Error, ValueError):
                inbox.handle("m-1", handler)
        faulty.bury()
        with Engine(faulty_sqlite(path, system_clock, Faults()).backend) as healthy:
            again = Inbox(healthy, consumer="billing", tries_max=9).handle("m-1", _write)
        assert again in (Receipt.HANDLED, Receipt.DUPLICATE), str(fault)
        assert sqlite_at(path).effects() == [0], str(fault)
        if faults.clean:
            break
