"""Atomic items: their writes, their outcomes and the proof that the bulk is still this holder's are one transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semel import ItemFailed, NothingHappened
from semel.bulk.declaration import BulkItem, operation_bytes
from semel.bulk.rules import Done, ItemState, Tally
from semel.bulk.store import Failures, Items
from semel.errors import InProgressError, KeyReusedError, PolicyError
from tests.bulk.fellows import Fellow, Home, counts, states, write
from tests.bulk.lists import number_items

Make = Callable[..., Fellow]


class Stopped(BaseException):
    """The process is stopped from outside, as by Ctrl-C."""


async def never(item: BulkItem) -> None:
    raise AssertionError("this must not run")


def test_each_item_has_one_outcome_and_a_second_call_gets_the_same_answer(make_fellow: Make, home: Home) -> None:
    fellow = make_fellow(chunk_items=7)
    done = fellow.run(number_items(20), counts)
    assert done.tally == Tally(20, 20, 20, 0, 0, 0)
    assert home.effects() == list(range(20))
    assert [(each.place, each.item_id, each.result_id) for each in fellow.outcomes(done)] == [
        (n, f"i-{n}", f"r-{n}") for n in range(20)
    ]
    again = make_fellow().run(number_items(20), never)
    assert again.replayed
    assert again.tally == done.tally
    assert again.operation_id == done.operation_id
    assert fellow.progress(done.operation_id) == done.tally


@pytest.mark.parametrize("kind", ["pymysql", "asyncmy"])
def test_large_details_of_a_chunk_fit_into_the_packets_of_the_server(
    make_fellow: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.bulk.flow.retry_seconds", lambda tried, jitter: 0.0)

    async def details(item: BulkItem) -> Done:
        return Done(detail=bytes(65_536))

    fellow = make_fellow(chunk_items=150, chunk_seconds=30)  # one chunk: 25 MiB as it is written down
    done = fellow.run(number_items(150), details)
    assert done.tally == Tally(150, 150, 150, 0, 0, 0)
    assert all(outcome.detail == bytes(65_536) for outcome in fellow.outcomes(done))


@pytest.mark.parametrize("kind", ["pymysql", "asyncmy"])
def test_a_lease_that_ends_with_its_deadline_is_held_to_the_end(make_fellow: Make) -> None:
    """Renewing it changes nothing any more, and MariaDB counts the rows that were changed: it is no lost lease."""
    fellow = make_fellow(chunk_items=5, lease_seconds=30, deadline_seconds=30)
    assert fellow.run(number_items(20), counts).tally == Tally(20, 20, 20, 0, 0, 0)


def test_another_list_under_the_key_is_refused(make_fellow: Make) -> None:
    fellow = make_fellow()
    fellow.run(number_items(5), counts)
    for other in (
        number_items(6),
        number_items(4),
        list(reversed(number_items(5))),
        [*number_items(4), {"clientItemId": "i-4"}],
    ):
        with pytest.raises(KeyReusedError):
            fellow.run(other, never)


def test_a_stopped_bulk_continues_after_its_last_commit(make_fellow: Make, home: Home) -> None:
    ran: list[int] = []

    async def stop_at_57(item: BulkItem) -> None:
        if item.place == 57:
            raise Stopped
        await counts(item)

    async def goes_on(item: BulkItem) -> None:
        ran.append(item.place)
        await counts(item)

    with pytest.raises(Stopped):
        make_fellow(chunk_items=10).run(number_items(100), stop_at_57)
    assert home.effects() == list(range(50))
    done = make_fellow(chunk_items=10).run(number_items(100), goes_on)
    assert ran == list(range(50, 100))
    assert done.tally.succeeded == 100
    assert home.effects() == list(range(100))


def test_a_failed_item_does_not_undo_others(make_fellow: Make, home: Home) -> None:
    async def some_fail(item: BulkItem) -> Any:
        n = item.value["n"]
        if n == 3:
            raise ItemFailed("NOT_THERE", target_id="case-3", written=False)
        await write(item, n)
        if n in (8, 9, 20):
            raise ItemFailed("CLOSED", retryable=n == 20, target_id=f"case-{n}")
        if n == 12:
            raise ValueError("it does not fit")
        if n == 15:
            raise NothingHappened  # it has, but the handler says otherwise, and its word counts
        return Done(result_id=f"r-{n}", detail=b"\x00\xff")

    fellow = make_fellow(chunk_items=10)
    done = fellow.run(number_items(25), some_fail)
    assert done.tally == Tally(25, 25, 19, 6, 3, 0)
    assert home.effects() == [n for n in range(25) if n not in (3, 8, 9, 12, 20)]
    failed = {each.place: (each.error_code, each.retryable) for each in fellow.outcomes(done, state=ItemState.FAILED)}
    assert failed == {
        3: ("NOT_THERE", False),
        8: ("CLOSED", False),
        9: ("CLOSED", False),
        12: ("ValueError", True),
        15: ("NothingHappened", True),
        20: ("CLOSED", True),
    }
    assert [each.place for each in fellow.outcomes(done, retryable=True)] == [12, 15, 20]
    assert fellow.outcomes(done)[8].target_id == "case-8"
    assert fellow.outcomes(done)[0].detail == b"\x00\xff"


def test_a_statement_that_fails_fails_its_item_alone(make_fellow: Make, home: Home) -> None:
    """On PostgreSQL the whole transaction has failed with it."""
    items = [*number_items(5), {"clientItemId": "twin", "n": 3}, *number_items(5, first=5)]
    fellow = make_fellow(chunk_items=100)
    done = fellow.run(items, counts)
    assert done.tally == Tally(11, 11, 10, 1, 1, 0)
    assert home.effects() == list(range(10))
    assert states(fellow.outcomes(done)).index(ItemState.FAILED) == 5


def test_all_items_fail(make_fellow: Make, home: Home) -> None:
    async def fails(item: BulkItem) -> None:
        await counts(item)
        raise ItemFailed("NO")

    fellow = make_fellow(chunk_items=4)
    done = fellow.run(number_items(10), fails)
    assert done.tally == Tally(10, 10, 0, 10, 0, 0)
    assert home.effects() == []


def test_a_duplicate_gets_in_progress(make_fellow: Make, home: Home) -> None:
    other = make_fellow()
    met: list[type[Exception]] = []

    async def asks_meanwhile(item: BulkItem) -> None:
        if item.place == 1 and other.runner is None:
            try:
                other.run(number_items(3), never)
            except InProgressError as error:
                met.append(type(error))
        await counts(item)

    assert make_fellow().run(number_items(3), asks_meanwhile).tally.succeeded == 3
    assert met == ([InProgressError] if other.runner is None else [])


def test_a_superseded_run_writes_nothing(make_fellow: Make, home: Home) -> None:
    """The lease is lost during a chunk: another process continues, and the chunk is refused with all its effects."""
    taken: list[int] = []

    async def is_overtaken(item: BulkItem) -> None:
        await counts(item)
        if item.place == 14 and not taken:
            taken.append(1)
            home.fetch("UPDATE semel_record SET fence = fence + 1")

    kind = make_fellow().kind
    if kind.startswith("sqlite"):  # its file has one writer: no other attempt can be granted inside a chunk

        async def between(item: BulkItem) -> None:
            await counts(item)

        assert make_fellow(chunk_items=10).run(number_items(20), between).tally.succeeded == 20
        return
    from semel.errors import SupersededError

    with pytest.raises(SupersededError):
        make_fellow(chunk_items=10).run(number_items(20), is_overtaken)
    assert home.effects() == list(range(10))


def test_a_handlers_rollback_stops_the_bulk(make_fellow: Make, home: Home) -> None:
    async def rolls_back(item: BulkItem) -> None:
        await counts(item)
        if item.place == 4:
            item.connection.rollback()

    fellow = make_fellow(chunk_items=3)
    if fellow.kind == "asyncpg":  # its connections have no rollback
        return
    with pytest.raises(PolicyError, match="may not roll"):
        fellow.run(number_items(6), rolls_back)
    assert home.effects() == [0, 1, 2]
    assert fellow.run(number_items(6), counts).tally.succeeded == 6


def test_a_result_that_cannot_be_stored_fails_only_its_item(make_fellow: Make, home: Home) -> None:
    """A PolicyError may be made of what an item holds: it stopped the whole list, again and again."""

    async def says(item: BulkItem) -> object:
        await counts(item)
        if item.place == 1:
            raise PolicyError("a topic must be a text")
        return "x" * 2000 if item.place == 3 else None

    fellow = make_fellow(chunk_items=3)
    done = fellow.run(number_items(6), says)
    failed = [(each.place, each.error_code) for each in fellow.outcomes(done, state=ItemState.FAILED)]
    assert failed == [(1, "PolicyError"), (3, "PolicyError")]
    id, items = operation_bytes(done.operation_id), Items(fellow.engine.store)
    told = fellow.wait_for(fellow.engine.perform("bulk", lambda: items.codes(id, 9)))
    assert told == [Failures(ItemState.FAILED, "PolicyError", True, 2)]
    assert home.effects() == [0, 2, 4, 5]
