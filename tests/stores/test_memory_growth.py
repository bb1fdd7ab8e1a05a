"""What the memory store's upkeep looks at does not grow with what is settled."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from semel.core.model import Find, Proceed
from semel.stores.memory.driver import LocalDriver
from semel.stores.memory.store import MemoryStore, Table
from semel.testing.attempts import attempt, settlement
from semel.testing.clock import SettableClock

MANY = 3_000
LONG_SECONDS = 10**8


class Counted(dict[bytes, Any]):
    """Records that count how often one of them is read."""

    reads = 0

    def get(self, id: bytes, other: Any = None) -> Any:
        self.reads += 1
        return super().get(id, other)

    def values(self) -> Any:
        pytest.fail("it walks all records")

    items = values


class World:
    def __init__(self) -> None:
        self.clock = SettableClock()
        self.driver = LocalDriver(clock=self.clock)
        self.store = MemoryStore()
        for number in range(MANY):
            [verdict] = self.driver.run(partial(self.store.claim, (attempt(f"k{number}"),)))
            assert isinstance(verdict, Proceed)
            self.driver.run(partial(self.store.settle, (settlement(verdict.grant),)))
        self.driver.run(lambda: self.store.claim((attempt("open"),)))
        self.records = self.table.records = Counted(self.table.records)

    @property
    def table(self) -> Table:
        return self.driver._table


def test_the_search_for_lapses_reads_only_running_records() -> None:
    world = World()
    assert world.driver.run(lambda: world.store.lapse(100)) == []
    assert world.records.reads == MANY + 2  # each is given its place once
    world.records.reads = 0
    assert world.driver.run(lambda: world.store.lapse(100)) == []
    assert world.records.reads == 1
    world.clock.advance(seconds=LONG_SECONDS)
    assert len(world.driver.run(lambda: world.store.lapse(100))) == 1
    assert world.driver.run(lambda: world.store.lapse(100)) == []
    assert world.table.running == set()


def test_a_chunk_of_a_purge_reads_its_own_records() -> None:
    world = World()
    world.table.place()
    world.records.reads = 0
    after: int | None = None
    chunks = 0
    while chunks == 0 or after is not None:
        after = world.driver.run(partial(world.store.purge, after, 500)).next_after
        chunks += 1
    assert chunks == MANY // 500 + 1
    assert world.records.reads == MANY + 1


def test_deleted_records_leave_the_order_too() -> None:
    world = World()
    world.clock.advance(seconds=LONG_SECONDS)
    for start in (None, 500, 1_000, 1_500, 2_000, 2_500):
        assert world.driver.run(partial(world.store.purge, start, 500)).forgotten == 500
    assert len(world.table.order) <= 2 + 64
    assert [record.key_hash for record in world.driver.run(lambda: world.store.find(Find())).records] == [
        attempt("open").key_hash
    ]


def test_a_key_that_was_forgotten_comes_last_when_it_comes_again() -> None:
    world = World()
    world.clock.advance(seconds=LONG_SECONDS)
    for key in ("open", "k0", "k1"):  # the first has run all the time, and the second is forgotten below
        world.driver.run(partial(world.store.claim, (attempt(key),)))
    assert world.driver.run(partial(world.store.purge, None, 1)).forgotten == 1
    world.driver.run(partial(world.store.claim, (attempt("k0"),)))
    world.driver.run(partial(world.store.claim, (attempt("new"),)))
    newest = [record.key_hash for record in world.driver.run(lambda: world.store.find(Find(limit=3))).records]
    assert newest == [attempt(key).key_hash for key in ("new", "k0", "open")]
    assert sorted(world.table.seqs.values()) == [seq for seq, _ in world.table.order if seq > 1]
