"""A commit that the database refuses for what an atomic item wrote is that item's failure, not the store's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import asyncpg
import psycopg
import pytest

from semel.bulk.declaration import BulkItem
from semel.bulk.rules import ItemState, Tally
from tests.bulk.fellows import Fellow, Home, breaks_the_commit, write
from tests.bulk.lists import number_items

Make = Callable[..., Fellow]


def breaks_at(*bad: int) -> Callable[[BulkItem], object]:
    async def handler(item: BulkItem) -> None:
        n = item.value["n"]
        await write(item, n)
        if n in bad:
            await breaks_the_commit(item.connection, n)

    return handler


@pytest.mark.parametrize("bad", [(3,), (0, 1), (7,), (2, 3, 6)], ids=str)
def test_the_items_that_break_a_commit_fail_and_the_others_succeed(
    make_fellow: Make, home: Home, bad: tuple[int, ...]
) -> None:
    fellow = make_fellow(chunk_items=3)
    done = fellow.run(number_items(8), breaks_at(*bad))  # type: ignore[arg-type]
    assert done.tally == Tally(8, 8, 8 - len(bad), len(bad), len(bad), 0)
    assert home.effects() == [n for n in range(8) if n not in bad]
    failed = fellow.outcomes(done, state=ItemState.FAILED)
    assert [(each.place, each.error_code) for each in failed] == [(n, "HandlerRefused") for n in bad]
    assert fellow.run(number_items(8), breaks_at()).replayed  # type: ignore[arg-type]


def test_a_bulk_of_one_item_that_breaks_its_commit_ends(make_fellow: Make, home: Home) -> None:
    assert make_fellow(chunk_items=1).run(number_items(1), breaks_at(0)).tally == Tally(1, 1, 0, 1, 1, 0)  # type: ignore[arg-type]
    assert home.effects() == []


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async", "asyncpg"])
def test_an_item_that_swallows_a_statement_error_fails_and_its_neighbours_do_not(make_fellow: Make, home: Home) -> None:
    async def handler(item: BulkItem) -> None:
        await write(item, item.value["n"])
        if item.value["n"] == 1:
            with suppress(psycopg.Error, asyncpg.PostgresError):
                await write(item, 1)

    fellow = make_fellow(chunk_items=4)
    done = fellow.run(number_items(6), handler)
    assert done.tally == Tally(6, 6, 5, 1, 1, 0)
    assert home.effects() == [0, 2, 3, 4, 5]
    [failed] = fellow.outcomes(done, state=ItemState.FAILED)
    assert (failed.place, failed.error_code) == (1, "HandlerRefused")
