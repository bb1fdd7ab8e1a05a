"""Galera says a refused statement again by itself, after its rows have left: the reply holds the rows of both runs.

Seen on three nodes with ``wsrep_retry_autocommit=1``, the default: of 4,000 keys that two nodes inserted at once nearly
all were answered to one of them by two rows, first its own, then the other's, which stood.
"""

from __future__ import annotations

from typing import Any

from semel.core.flow import perform
from semel.core.model import Proceed
from semel.stores.mariadb.store import MariadbStore
from semel.stores.memory.store import MemoryStore, Table
from semel.testing.attempts import attempt
from semel.testing.clock import SettableClock


def row_of(nonce: int) -> tuple[Any, ...]:
    """What the server would answer to a claim that it grants: the time, and the record."""
    table, clock = Table(), SettableClock()
    claim = attempt(nonce=nonce)
    [verdict] = perform(MemoryStore().claim([claim]), lambda needed: needed.act(table, clock()))  # type: ignore[attr-defined]
    assert isinstance(verdict, Proceed)
    row = table.row(claim.id)
    assert row is not None
    return (clock(), *row)


def test_the_last_row_is_the_one_that_was_committed() -> None:
    mine, others = row_of(1), row_of(2)
    for rows, granted in (([mine], True), ([mine, others], False)):
        flow = MariadbStore().claim([attempt(nonce=1)])
        next(flow)
        try:
            needed: Any = flow.send(rows)
        except StopIteration as ended:
            [verdict] = ended.value
        else:
            raise AssertionError(f"nothing more is to be asked: {needed}")
        assert isinstance(verdict, Proceed) is granted
