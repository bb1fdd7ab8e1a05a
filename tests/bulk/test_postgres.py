"""What is particular to PostgreSQL: statements that travel together, and handlers that end the transaction."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from semel.bulk.declaration import BulkItem
from semel.bulk.rules import ItemState, Tally
from semel.errors import EarlyCommit
from tests.bulk.fellows import Fellow, Home, counts
from tests.bulk.lists import number_items

Make = Callable[..., Fellow]


@pytest.fixture(params=["psycopg", "psycopg-async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_pipelined_chunk_is_repeated_if_a_statement_fails(make_fellow: Make, home: Home) -> None:
    items = [*number_items(30), {"clientItemId": "twin", "n": 17}, *number_items(20, first=30)]
    fellow = make_fellow(pipelined=True, chunk_items=10)
    done = fellow.run(items, counts)
    assert done.tally == Tally(51, 51, 50, 1, 1, 0)
    assert home.effects() == list(range(50))
    [failed] = fellow.outcomes(done, state=ItemState.FAILED)
    assert (failed.item_id, failed.error_code) == ("twin", "UniqueViolation")


def test_a_pipelined_handler_may_fetch(make_fellow: Make, home: Home) -> None:
    async def fetches(item: BulkItem) -> str:
        done = item.connection.execute("INSERT INTO effect VALUES (%s) RETURNING n * 2", (item.value["n"],))
        cursor = done if fellow.runner is None else await done
        row = cursor.fetchone() if fellow.runner is None else await cursor.fetchone()
        return str(row[0])

    fellow = make_fellow(pipelined=True)
    assert [each.result_id for each in fellow.outcomes(fellow.run(number_items(4), fetches))] == ["0", "2", "4", "6"]


def test_a_handler_that_commits_stops_the_bulk_and_nothing_runs_twice(
    make_fellow: Make, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def commits(item: BulkItem) -> None:
        await counts(item)
        if item.place == 4:
            done = item.connection.execute("COMMIT")
            if fellow.runner is not None:
                await done

    fellow = make_fellow(chunk_items=3)
    monkeypatch.setattr("semel.bulk.flow.retry_seconds", lambda tried, jitter: 0.0)
    with pytest.raises(EarlyCommit):
        fellow.run(number_items(9), commits)
    done = make_fellow(chunk_items=3).run(number_items(9), counts)
    doubted = fellow.outcomes(done, state=ItemState.UNKNOWN)
    assert [each.place for each in doubted] == [3, 4, 5]
    assert {each.error_code for each in doubted} == {"committed-early"}
    assert [n for n in home.effects() if n not in (3, 4, 5)] == [0, 1, 2, 6, 7, 8]
