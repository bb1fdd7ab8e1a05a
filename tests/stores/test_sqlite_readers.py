"""The idle readers of the SQLite driver: taken without a lock, and held still for a fork."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.stores.clock import system_clock
from semel.stores.sqlite.connection import answering
from semel.stores.sqlite.readers import KEPT, Reader, Readers


@pytest.fixture
def readers(tmp_path: Path) -> Iterator[Readers]:
    path = tmp_path / "semel.db"
    sqlite3.connect(path).close()
    pool = Readers(str(path), "FULL", system_clock, answering, lambda: None)
    yield pool
    pool.close()


def is_open(reader: Reader) -> bool:
    try:
        reader.connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return False
    return True


def test_a_reader_that_was_given_back_is_taken_again(readers: Readers) -> None:
    first = readers.take()
    readers.give_back(first)
    assert readers.take() is first
    readers.give_back(first)


def test_a_reader_beyond_the_limit_is_closed(readers: Readers) -> None:
    taken = [readers.take() for _ in range(KEPT + 1)]
    for reader in taken:
        readers.give_back(reader)
    assert [is_open(reader) for reader in taken].count(False) == 1
    assert readers.hold(0)
    readers.release()


def test_hold_fails_while_a_reader_is_in_use(readers: Readers) -> None:
    out, idle = readers.take(), readers.take()
    readers.give_back(idle)
    assert not readers.hold(0)
    assert readers.take() is idle
    readers.give_back(idle)
    readers.give_back(out)
    assert readers.hold(0)
    readers.release()


def test_a_failed_reader_is_not_waited_for(readers: Readers) -> None:
    readers.discard(readers.take())
    assert readers.hold(0)
    readers.release()


def test_hold_waits_until_a_reader_is_given_back(readers: Readers) -> None:
    out, held = readers.take(), list[bool]()
    holding = threading.Thread(target=lambda: held.append(readers.hold(60)))
    holding.start()
    readers.give_back(out)
    holding.join()
    assert held == [True]
    readers.release()


def test_held_readers_are_not_given_out_and_can_be_closed(readers: Readers) -> None:
    first, given = readers.take(), list[Reader]()
    readers.give_back(first)
    assert readers.hold(0)
    taking = threading.Thread(target=lambda: given.append(readers.take()))
    taking.start()
    readers.close()  # as a driver does before the fork
    assert (given, is_open(first)) == ([], False)
    readers.release()
    taking.join()
    [second] = given
    assert is_open(second)
    readers.give_back(second)
