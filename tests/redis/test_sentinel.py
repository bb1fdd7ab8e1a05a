"""The primary that Sentinels name: asked for when it is not known or has failed, believed when it says so itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from semel.errors import StoreError, StoreTimeout, StoreUnavailable
from semel.stores.redis.routes import Node, NodeExchange, RedisRefused, Replies, RouteTerms, perform
from semel.stores.redis.scripts import RedisCall
from semel.stores.redis.sentinel import Sentinel
from semel.stores.urls import connect_backend
from tests.engine.shells import MADE, Mode, Shell, command
from tests.servers import redis as servers
from tests.servers import sentinel
from tests.servers.running import Running, stop

FIRST, SECOND = Node("sentinel-1", 1), Node("sentinel-2", 2)
HERE, THERE = Node("here", 1), Node("there", 2)
NAMES_HERE, NAMES_THERE = [[b"here", b"1"]], [[b"there", b"2"]]
PRIMARY, REPLICA = [[b"master", 0, []]], [[b"slave", b"here", 1, b"connected", 0]]
AWAY = StoreUnavailable("nobody listens there")
NIL: Replies = [None]


def ask_with(routes: Sentinel, *answers: Replies) -> tuple[list[Node], Any]:
    """Answer the exchanges of a call in turn; return the nodes it asked, and its result."""
    said: list[NodeExchange] = []
    performing = perform(routes, RouteTerms(), [RedisCall(None, (b"k",), (), "GET")])
    left = list(answers)
    try:
        wanted = next(performing)
        while True:
            said += wanted
            wanted = performing.send([left.pop(0) for _ in wanted])
    except StopIteration as end:
        told: Any = end.value
    except StoreError as error:
        told = str(error)
    assert left == []
    return [each.node for each in said], told


def test_a_sentinel_is_asked_once_and_again_after_a_failure() -> None:
    routes = Sentinel("shop", (FIRST, SECOND))
    assert ask_with(routes, NAMES_HERE, PRIMARY, [b"1"]) == ([FIRST, HERE, HERE], [b"1"])
    assert ask_with(routes, [b"2"]) == ([HERE], [b"2"])
    routes._asked = -1e9
    assert ask_with(routes, StoreTimeout("lost")) == ([HERE], "lost")
    assert ask_with(routes, NAMES_THERE, PRIMARY, [b"3"]) == ([FIRST, THERE, THERE], [b"3"])


def test_a_primary_that_has_become_a_replica_is_not_asked_again() -> None:
    """A refused write had no effect: the call raises that, and the next one finds the new primary."""
    routes = Sentinel("shop", (FIRST,))
    ask_with(routes, NAMES_HERE, PRIMARY, [b"1"])
    routes._asked = -1e9
    told = ask_with(routes, [RedisRefused("READONLY", "You can't write against a read only replica.")])
    assert told[1] == [RedisRefused("READONLY", "You can't write against a read only replica.")]
    assert ask_with(routes, NAMES_THERE, PRIMARY, [b"2"]) == ([FIRST, THERE, THERE], [b"2"])


def test_a_silent_sentinel_is_skipped_and_asked_last() -> None:
    routes = Sentinel("shop", (FIRST, SECOND))
    assert ask_with(routes, AWAY, NAMES_HERE, PRIMARY, [b"1"])[0] == [FIRST, SECOND, HERE, HERE]
    routes.note_failure(HERE)
    routes._asked = -1e9
    assert ask_with(routes, NAMES_HERE, PRIMARY, [b"2"])[0] == [SECOND, HERE, HERE]


def test_a_sentinel_that_names_the_old_primary_is_ignored() -> None:
    routes = Sentinel("shop", (FIRST, SECOND))
    assert ask_with(routes, NAMES_HERE, REPLICA, NAMES_THERE, PRIMARY, [b"1"])[0] == [FIRST, HERE, SECOND, THERE, THERE]
    routes = Sentinel("shop", (FIRST, SECOND))
    nodes, told = ask_with(routes, NAMES_HERE, AWAY, NAMES_HERE)
    assert nodes == [FIRST, HERE, SECOND]  # a server that hangs is waited for once
    assert told == (
        "nobody listens there; the Sentinels still name it: no server has taken over yet, retry with the same key"
    )


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([NIL], "knows no service 'shop': check the path of the URL"),
        ([AWAY], "nobody listens there"),
        ([[RedisRefused("ERR", "unknown command 'SENTINEL'")]], "sentinel-1:1 is no Sentinel; name the Sentinels"),
        ([[RedisRefused("NOPERM", "no")]], "Sentinel sentinel-1:1: NOPERM no"),
        ([NAMES_HERE, REPLICA], "here:1 is a replica, and the Sentinels still name it"),
        ([NAMES_HERE, [RedisRefused("NOPERM", "no")]], "NOPERM no (its user needs ROLE)"),
    ],
)
def test_a_sentinel_without_a_primary_is_reported(answers: list[Replies], said: str) -> None:
    assert said in ask_with(Sentinel("shop", (FIRST,)), *answers)[1]


def test_a_primary_that_belongs_to_a_cluster_is_reported_as_one() -> None:
    routes = Sentinel("shop", (FIRST,))
    assert (
        "is part of a cluster; use redis+cluster://"
        in ask_with(routes, NAMES_HERE, PRIMARY, [RedisRefused("MOVED", "12345 there:2")])[1]
    )


def test_no_server_is_contacted_before_a_primary_is_known() -> None:
    with pytest.raises(StoreUnavailable, match="no Sentinel has named the primary of 'shop' yet"):
        Sentinel("shop", (FIRST,)).node_of(b"k")


# --- real ones ------------------------------------------------------------------------------------

Starts = Callable[..., Running]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is ended at the end."""
    with ExitStack() as stack:
        yield stack


def shell_of(mode: Mode, url: str, kept: ExitStack) -> Shell:
    shell = Shell(mode, connect_backend(url), confirm_seconds=5)
    kept.callback(shell.close)
    return shell


def test_a_user_of_the_servers_that_the_sentinels_do_not_know(mode: Mode, tmp_path: Path, stack: ExitStack) -> None:
    primary = servers.start(tmp_path / "primary", "appendonly yes", "requirepass secret")
    stack.callback(stop, primary)
    watched = f"sentinel auth-pass {sentinel.SERVICE} secret"
    (open_one,) = sentinel.start(tmp_path / "open", primary.port, 1, watched)
    stack.callback(stop, open_one)
    (closed,) = sentinel.start(tmp_path / "closed", primary.port, 1, watched, "requirepass secret")
    stack.callback(stop, closed)
    where = f"127.0.0.1:{open_one.port}/{sentinel.SERVICE}/1"
    shell = shell_of(mode, f"redis+sentinel://:secret@{where}", stack)
    shell.open()
    assert shell.run(command(), lambda permit: MADE).answer == MADE
    with Redis(port=primary.port, password="secret", db=1) as plain:
        assert plain.exists("semel:meta")

    where = f"127.0.0.1:{closed.port}/{sentinel.SERVICE}/1"
    same = shell_of(mode, f"redis+sentinel://:secret@{where}?sentinel_auth=same", stack)
    assert same.run(command(), lambda permit: MADE).replayed
    for url, said in (
        (f"redis+sentinel://:secret@{where}", "put it into the URL"),
        (f"redis+sentinel://:secret@127.0.0.1:{open_one.port}/other", "knows no service 'other'"),
        (f"redis+sentinel://:secret@127.0.0.1:{primary.port}/shop?sentinel_auth=same", "is no Sentinel"),
    ):
        with pytest.raises(StoreUnavailable, match=said) as told:
            shell_of(mode, url, stack).run(command(), lambda permit: MADE)
        assert "secret" not in str(told.value)


def test_another_primary_is_found_without_a_restart(tmp_path: Path, stack: ExitStack) -> None:
    """An operator starts the failover, so no server dies: the old primary is now a replica and refuses writes."""
    common = ("appendonly yes", "repl-diskless-sync-delay 0")
    primary = servers.start(tmp_path / "primary", *common)
    stack.callback(stop, primary)
    replica = servers.start(tmp_path / "replica", *common, f"replicaof 127.0.0.1 {primary.port}")
    stack.callback(stop, replica)
    with Redis(port=primary.port) as plain:
        servers.eventually(lambda: plain.wait(1, 100) == 1)
    sentinels = sentinel.start(tmp_path / "sentinels", primary.port)
    for each in sentinels:
        stack.callback(stop, each)
    modes: tuple[Mode, ...] = ("sync", "async")
    shells = [shell_of(mode, sentinel.url(sentinels), stack) for mode in modes]
    shells[0].open()
    for number, shell in enumerate(shells):
        assert not shell.run(command(f"before {number}"), lambda permit: MADE).replayed
    with Redis(port=primary.port) as plain:
        servers.eventually(lambda: plain.wait(1, 100) == 1)
    with Redis(port=sentinels[0].port) as plain:
        plain.execute_command("SENTINEL", "FAILOVER", sentinel.SERVICE)

    def has_moved(shell: Shell, number: int) -> bool:
        try:
            return shell.run(command(f"before {number}"), lambda permit: MADE).replayed
        except StoreError:
            return False

    servers.eventually(lambda: all(sentinel.primary(each.port) == replica.port for each in sentinels))
    for number, shell in enumerate(shells):
        servers.eventually(lambda shell=shell, number=number: has_moved(shell, number))  # type: ignore[misc]
        assert not shell.run(command(f"after {number}"), lambda permit: MADE).replayed
    with Redis(port=replica.port) as plain:
        assert plain.info("replication")["role"] == "master"
