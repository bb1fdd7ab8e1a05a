"""What the scripts of claims and settlements do with strings that no store has written, and with twins in one batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from semel import Answer
from semel.core.model import RECORD_FORMAT, InProgress, Proceed, Replay, Settled, State, Superseded, Unreadable
from semel.core.record import is_sound, state_of
from semel.errors import StatementRefused
from semel.stores.backend import Backend
from semel.stores.redis.keys import TAGS
from semel.stores.redis.layout import HEAD_BYTES, PLACES, decode, decode_any
from semel.testing.attempts import attempt, settlement
from tests.redis.conftest import backend
from tests.servers import redis as servers

LAST = HEAD_BYTES - 1


@pytest.fixture
def own_backend(own: int) -> Iterator[Backend]:
    opened = backend(own)
    opened.driver.run(lambda: opened.store.migrate("store", b"none"))
    yield opened
    opened.driver.close()


def claim_all(made: Backend, *claims: Any) -> list[Any]:
    found: list[Any] = made.driver.run(lambda: made.store.claim(claims))
    return found


@pytest.mark.parametrize("byte", [b"\xff", b"\0", b" ", b"x", b"-"])
@pytest.mark.parametrize("place", [*(place for place, _ in PLACES.values()), PLACES["dedup_until"][1] - 1, LAST])
def test_nothing_is_settled_on_a_damaged_head(own: int, own_backend: Backend, byte: bytes, place: int) -> None:
    """The script leaves to the rules what it does not know; they settle what is a record all the same."""
    store: Any = own_backend.store
    [verdict] = claim_all(own_backend, attempt())
    key = store.keys.record(attempt().id)
    with Redis(port=own) as plain:
        plain.setrange(key, place, byte)
        damaged = plain.get(key)
        assert isinstance(damaged, bytes)
        [reply] = own_backend.driver.run(lambda: own_backend.store.settle((settlement(verdict.grant),)))
        left = plain.get(key)
    assert isinstance(left, bytes)
    row = decode_any(damaged, attempt().id)
    if row.format == RECORD_FORMAT and is_sound(row) and state_of(row) is not None:
        assert reply == Settled()
        assert decode(left).state == State.SUCCEEDED
    else:
        assert reply != Settled()
        assert left == damaged
        assert isinstance(claim_all(own_backend, attempt())[0], Unreadable)


@pytest.mark.parametrize("name", ["fence", "lease_until", "nonce"])
@pytest.mark.parametrize("byte", [b" ", b"_", b"A"])
def test_a_record_head_with_a_noncanonical_number_is_unreadable(
    own: int, own_backend: Backend, name: str, byte: bytes
) -> None:
    """As a number it would be equal, and no compare-and-set would ever find it so: a settlement would try for ever."""
    store: Any = own_backend.store
    [verdict] = claim_all(own_backend, attempt())
    with Redis(port=own) as plain:
        plain.setrange(store.keys.record(attempt().id), PLACES[name][0] + (name != "lease_until"), byte)
    [reply] = own_backend.driver.run(lambda: own_backend.store.settle((settlement(verdict.grant),)))
    assert reply != Settled()
    assert isinstance(claim_all(own_backend, attempt())[0], Unreadable)


def test_twins_in_one_batch_are_granted_once(own_backend: Backend) -> None:
    """The second of two claims of one key meets the first one's record; an equal claim meets its own."""
    first, second = attempt(nonce=1), attempt(nonce=2)
    mine, others, again = claim_all(own_backend, first, second, first)
    assert isinstance(mine, Proceed)
    assert isinstance(others, InProgress)
    assert isinstance(again, Proceed)
    assert again.grant == mine.grant
    settled = own_backend.driver.run(lambda: own_backend.store.settle((settlement(mine.grant), settlement(mine.grant))))
    assert Settled() in settled
    assert len(settled) == 2


@pytest.mark.parametrize("name", ["all", "open", "due"])
def test_an_invalid_list_refuses_its_claims(own: int, own_backend: Backend, name: str) -> None:
    """Nothing is written by a claim whose place cannot be told."""
    store: Any = own_backend.store
    with Redis(port=own) as plain:
        plain.set(store.keys.tag(attempt().id) + name.encode(), b"no list")
        with pytest.raises(StatementRefused, match="WRONGTYPE"):
            claim_all(own_backend, attempt())
        assert (plain.get(store.keys.record(attempt().id)) is None) is (name == "all")


@pytest.mark.parametrize("cluster", [False, True])
def test_a_large_batch_is_answered_in_its_order(cluster: bool) -> None:
    """More records than tags: in a cluster several share a call, and their replies come back by tag."""
    port = servers.cluster() if cluster else servers.valkey()
    opened = backend(port, cluster=cluster)
    opened.driver.run(lambda: opened.store.migrate("store", b"none"))
    claims = [attempt(key=f"{key}") for key in range(3 * TAGS)]
    granted = claim_all(opened, *claims)
    assert [verdict.grant.nonce for verdict in granted] == [claim.nonce for claim in claims]
    settlements = [settlement(verdict.grant, answer=Answer(201, (), b"%d" % n)) for n, verdict in enumerate(granted)]
    settlements[5] = settlements[5]._replace(fence=1)
    settled = opened.driver.run(lambda: opened.store.settle(settlements))
    assert [type(reply) for reply in settled] == [
        Superseded if place == 5 else Settled for place in range(len(settlements))
    ]
    again = claim_all(opened, *[claim._replace(nonce=bytes(16)) for claim in claims])
    assert [type(verdict) for verdict in again] == [InProgress if n == 5 else Replay for n in range(len(settlements))]
    bodies = [verdict.answer.body for verdict in again if isinstance(verdict, Replay)]
    assert bodies == [b"%d" % place for place in range(len(settlements)) if place != 5]
    opened.driver.close()
