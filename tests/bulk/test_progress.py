"""A bulk is looked at by its key, and its operation's id is known while it runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from semel import BulkItem, Tally
from semel.errors import PolicyError
from tests.bulk.fellows import Fellow, counts
from tests.bulk.lists import number_items

Make = Callable[..., Fellow]


class Stopped(BaseException):
    """The process is stopped from outside, as by Ctrl-C."""


def test_a_bulk_that_was_stopped_is_found_by_its_key(make_fellow: Make) -> None:
    async def stop_at_9(item: BulkItem) -> None:
        if item.place == 9:
            raise Stopped
        await counts(item)

    told: list[str] = []
    with pytest.raises(Stopped):
        make_fellow(chunk_items=4).run(number_items(20), stop_at_9, begun=told.append)
    other = make_fellow()
    assert other.progress(key="k", caller="alice") == other.progress(told[0]) == Tally(20, 8, 8, 0, 0, 0)
    assert other.operation_id(key="k", caller="alice") == told[0]
    done = other.run(number_items(20), counts, begun=told.append)
    assert told == [done.operation_id] * 2
    assert other.progress(key="k", caller="alice") == done.tally


def test_a_key_belongs_to_its_caller(make_fellow: Make) -> None:
    fellow = make_fellow()
    fellow.run(number_items(2), counts, tenant="acme")
    assert fellow.progress(key="k", caller="alice", tenant="acme") == Tally(2, 2, 2, 0, 0, 0)
    for named in (
        {"key": "k", "caller": "alice"},
        {"key": "k", "caller": "bob", "tenant": "acme"},
        {"key": "j", "caller": "alice", "tenant": "acme"},
    ):
        assert fellow.progress(**named) is None
        assert fellow.operation_id(**named) is None
    assert make_fellow(operation="other").progress(key="k", caller="alice", tenant="acme") is None


def test_a_replay_does_not_call_the_begun_callback(make_fellow: Make) -> None:
    fellow = make_fellow()
    fellow.run(number_items(2), counts)
    told: list[str] = []
    assert fellow.run(number_items(2), counts, begun=told.append).replayed
    assert told == []


def test_an_exception_of_the_callback_releases_the_lease(make_fellow: Make) -> None:
    def refuses(operation_id: str) -> None:
        raise Stopped

    fellow = make_fellow()
    with pytest.raises(Stopped):
        fellow.run(number_items(2), counts, begun=refuses)
    assert not fellow.run(number_items(2), counts).replayed


def test_progress_needs_arguments_that_identify_a_bulk(make_fellow: Make) -> None:
    fellow = make_fellow()
    id = "018f2b7e-4a10-7c3e-9b1a-0c6f5a2d9e41"
    for named in ({}, {"key": "k"}, {"caller": "alice"}, {"operation_id": id, "key": "k", "caller": "alice"}):
        with pytest.raises(PolicyError, match="operation_id alone, or key= and caller="):
            fellow.progress(**named)
