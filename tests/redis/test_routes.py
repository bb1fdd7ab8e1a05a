"""What a cluster's driver makes of a batch whose nodes differ, without a cluster: every exchange is answered here."""

from __future__ import annotations

from typing import Any

import pytest

from semel.errors import StatementRefused, StoreTimeout, StoreUnavailable
from semel.stores.redis.keys import Keys
from semel.stores.redis.routes import (
    ROUNDS_MAX,
    Cluster,
    Node,
    NodeExchange,
    RedisRefused,
    Replies,
    RouteTerms,
    perform,
    slot,
)
from semel.stores.redis.rows import LUA
from semel.stores.redis.scripts import RedisCall

HERE, THERE = Node("here", 1), Node("there", 2)
MAP = [[0, 16383, [b"here", 1]]]
KEYS = Keys("semel")
AWAY = StoreUnavailable("nobody listens there")


def claims(count: int) -> list[RedisCall]:
    return [RedisCall(LUA["claim"], (KEYS.record(bytes([tag]) * 16),), ()) for tag in range(count)]


def perform_with(
    calls: list[RedisCall], *answers: Replies, terms: RouteTerms | None = None
) -> tuple[list[NodeExchange], Any]:
    """Answer the exchanges in turn; return them and the result."""
    said: list[NodeExchange] = []
    performing = perform(Cluster((HERE,)), terms or RouteTerms(), calls)
    left = list(answers)
    try:
        wanted = next(performing)
        while True:
            said += wanted
            if wanted[0].commands[0][0] == "CLUSTER":
                wanted = performing.send([[MAP]])
            else:
                wanted = performing.send([left.pop(0) for _ in wanted])
    except StopIteration as stop:
        return said[1:], stop.value
    except (StoreUnavailable, StoreTimeout) as error:
        return said[1:], error


@pytest.mark.parametrize("then", ["away", "no script", "on and on"])
def test_a_batch_that_ran_in_part_is_not_reported_as_unavailable(then: str) -> None:
    """The claims that were written would stay held: each is sent again by itself, and finds its own nonce."""
    both = claims(2)
    for calls in (both, both[1:]):
        moved = RedisRefused("MOVED", f"{slot(both[1].place)} there:2")
        stories: dict[str, list[Replies]] = {
            "away": [AWAY],
            "no script": [[RedisRefused("NOSCRIPT", "")], AWAY],
            "on and on": [[moved]] * ROUNDS_MAX,
        }
        said, told = perform_with(calls, [[1, None, 1], moved][-len(calls) :], *stories[then])
        assert {exchange.node for exchange in said} == {HERE, THERE}
        assert isinstance(told, StoreUnavailable)
        assert isinstance(told, StatementRefused) is (calls is both)


MOVED = RedisRefused("MOVED", "1 there:2")
FULL = RedisRefused("OOM", "command not allowed when used memory > 'maxmemory'.")


@pytest.mark.parametrize(
    ("own", "stands"), [((b"OK", 1), True), ((FULL, 1), True), ((FULL, 0), False), ((MOVED, MOVED), False)]
)
def test_a_wait_counts_only_after_a_write_of_this_connection(own: tuple[object, object], stands: bool) -> None:
    """WAIT speaks of the connection's last write: where its own were refused, it may speak of none."""
    replies: Replies = [[1, b"record"], *own, 1]
    said, told = perform_with(claims(1), replies, terms=RouteTerms(wait_replicas=1))
    assert [command[0] for command in said[0].commands] == ["EVALSHA", "SET", "PEXPIRE", "WAIT"]
    assert isinstance(told, StoreTimeout) is not stands


@pytest.mark.parametrize("key", [KEYS.meta, KEYS.record(b"\1" * 16)])
def test_the_wait_key_is_in_the_slot_of_the_call(key: bytes) -> None:
    """Semel's own key has no braces: a write for WAIT that lay elsewhere was refused, and nothing could be migrated."""
    (own, *_) = RouteTerms(wait_replicas=1).waits([RedisCall(LUA["claim"], (key,), ())])
    assert slot(own[1]) == slot(key)
    assert own[1].lstrip(b"{").startswith(b"semel")


def test_a_slot_on_its_way_is_asked_for_its_replicas_too() -> None:
    ask = RedisRefused("ASK", "1 there:2")
    first: Replies = [ask, ask, ask, 1]
    then: Replies = [b"OK", [1, None, 1], b"OK", b"OK", b"OK", 1, 1]
    said, told = perform_with(claims(1), first, then, terms=RouteTerms(wait_replicas=1))
    assert [command[0] for command in said[1].commands] == [
        "ASKING",
        "EVALSHA",
        *("ASKING", "SET", "ASKING", "PEXPIRE"),
        "WAIT",
    ]
    assert told == [[1, None, 1]]
