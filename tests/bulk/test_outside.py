"""Items that call another service: the start is recorded first, and no call that may not be repeated is repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from semel import ItemFailed, NothingHappened
from semel.bulk.declaration import BulkItem
from semel.bulk.rules import ItemState, Tally
from semel.errors import SupersededError
from tests.bulk.fellows import Fellow, Home, states
from tests.bulk.lists import number_items

Make = Callable[..., Fellow]


class Killed(BaseException):
    """As far as the store is concerned, the process is dead."""


@pytest.fixture
def kind() -> str:
    return "sqlite"


@pytest.fixture(params=["sqlite", "sqlite-async", "psycopg", "asyncpg", "pymysql"])
def each_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Downstream:
    """Remembers every call, by its key; dies at one of them."""

    def __init__(self, *, dies_at: int = -1) -> None:
        self.calls: list[int] = []
        self.keys: Counter[str] = Counter()
        self.dies_at = dies_at

    async def charge(self, item: BulkItem) -> str:
        self.calls.append(item.place)
        self.keys[item.key_for("charge")] += 1
        if item.place == self.dies_at:
            self.dies_at = -1
            raise Killed
        return f"charge-{item.place}"


class TestOnEveryStore:
    @pytest.fixture
    def kind(self, each_kind: str) -> str:
        return each_kind

    @pytest.mark.parametrize("at_once", [1, 4])
    def test_an_interrupted_external_item_is_unknown_and_not_called_again(
        self, make_fellow: Make, at_once: int
    ) -> None:
        downstream = Downstream(dies_at=6)
        options = {"effects": "external", "at_once": at_once}
        with pytest.raises((Killed, BaseExceptionGroup)):
            make_fellow(**options).run(number_items(10), downstream.charge)
        fellow = make_fellow(**options)
        done = fellow.run(number_items(10), downstream.charge)
        assert max(Counter(downstream.calls).values()) == 1
        doubted = fellow.outcomes(done, state=ItemState.UNKNOWN)
        assert 1 <= len(doubted) <= at_once
        assert 6 in [each.place for each in doubted]
        assert {each.error_code for each in doubted} == {"interrupted"}
        assert done.tally == Tally(10, 10, 10 - len(doubted), 0, 0, len(doubted))
        assert fellow.run(number_items(10), downstream.charge).replayed

    def test_an_interrupted_idempotent_item_is_called_again_with_its_key(self, make_fellow: Make) -> None:
        downstream = Downstream(dies_at=5)
        options = {"effects": "idempotent", "at_once": 3}
        with pytest.raises((Killed, BaseExceptionGroup)):
            make_fellow(**options).run(number_items(8), downstream.charge)
        done = make_fellow(**options).run(number_items(8), downstream.charge)
        assert done.tally == Tally(8, 8, 8, 0, 0, 0)
        assert len(downstream.keys) == 8

    @pytest.mark.parametrize("effects", ["external", "idempotent"])
    def test_a_superseded_run_writes_nothing(self, make_fellow: Make, home: Home, effects: str) -> None:
        async def is_overtaken(item: BulkItem) -> None:
            if item.place == 3:
                home.fetch("UPDATE semel_record SET fence = fence + 1")

        with pytest.raises(SupersededError):
            make_fellow(effects=effects).run(number_items(6), is_overtaken)
        assert [tuple(row) for row in home.fetch("SELECT done, succeeded FROM semel_bulk")] == [(4, 3)]


def test_an_item_whose_key_the_downstream_may_have_forgotten_is_unknown(make_fellow: Make) -> None:
    downstream = Downstream(dies_at=2)
    with pytest.raises(Killed):
        make_fellow(effects="idempotent").run(number_items(4), downstream.charge)
    fellow = make_fellow(effects="idempotent", dedup_for_seconds=0.000001)
    done = fellow.run(number_items(4), downstream.charge)
    assert downstream.calls == [0, 1, 2, 3]
    assert fellow.outcomes(done)[2].error_code == "dedup-over"


def test_an_external_items_outcome_follows_its_exception(make_fellow: Make) -> None:
    async def ends(item: BulkItem) -> None:
        match item.place:
            case 0:
                raise ItemFailed("DECLINED", target_id="card-1")
            case 1:
                raise NothingHappened
            case 2:
                raise ConnectionRefusedError
            case 3:
                raise TimeoutError
            case _:
                return

    fellow = make_fellow(effects="external", nothing_happened=(ConnectionRefusedError,))
    done = fellow.run(number_items(5), ends)
    assert [(each.error_code, each.retryable) for each in fellow.outcomes(done)] == [
        ("DECLINED", False),
        ("NothingHappened", True),
        ("ConnectionRefusedError", True),
        ("error:TimeoutError", False),
        (None, False),
    ]
    assert done.tally == Tally(5, 5, 1, 3, 2, 1)


def test_an_idempotent_call_is_retried_before_the_item_is_unknown(make_fellow: Make) -> None:
    tried: Counter[int] = Counter()

    async def stumbles(item: BulkItem) -> None:
        tried[item.place] += 1
        if item.place == 1 or tried[item.place] < 3:
            raise TimeoutError

    fellow = make_fellow(effects="idempotent")
    done = fellow.run(number_items(3), stumbles)
    assert states(fellow.outcomes(done)) == [ItemState.SUCCEEDED, ItemState.UNKNOWN, ItemState.SUCCEEDED]
    assert tried == {0: 3, 1: 3, 2: 3}


def test_a_result_that_cannot_be_stored_leaves_only_its_item_unknown(make_fellow: Make) -> None:
    async def says(item: BulkItem) -> object:
        return "x" * 2000 if item.place == 1 else None

    fellow = make_fellow(effects="external", at_once=2)
    done = fellow.run(number_items(4), says)
    assert done.tally == Tally(4, 4, 3, 0, 0, 1)
    assert [each.error_code for each in fellow.outcomes(done, state=ItemState.UNKNOWN)] == ["error:PolicyError"]
