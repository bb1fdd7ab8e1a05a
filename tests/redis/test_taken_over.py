"""A server reports that it is not the primary, or cannot know: the engine finds the new primary without a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis import Redis

from semel.errors import StatementRefused
from semel.stores.redis.routes import Cluster, Node, NodeExchange, RedisRefused, RouteTerms, perform
from semel.stores.redis.scripts import RedisCall
from tests.engine.shells import MADE, command
from tests.redis.conftest import Opens
from tests.servers import redis as servers
from tests.servers.relay import REDIS, relay
from tests.servers.running import stop

HERE, THERE = Node("here", 1), Node("there", 2)
CODES = ("READONLY", "CLUSTERDOWN", "MASTERDOWN", "LOADING", "NOREPLICAS")


def test_a_name_that_moved_to_another_server_is_resolved_again(tmp_path: Path, open_engine: Opens) -> None:
    """As hosts of Redis fail over: the old primary lives on as a replica, no connection ends. The relay is the name."""
    common = ("appendonly yes", "repl-diskless-sync-delay 0")
    one = servers.start(tmp_path / "one", *common)
    two = servers.start(tmp_path / "two", *common, f"replicaof 127.0.0.1 {one.port}")
    try:
        with Redis(port=one.port) as old, Redis(port=two.port) as new, relay(one.port, REDIS) as name:
            servers.eventually(lambda: old.wait(1, 100) == 1)
            shell = open_engine(name.port)
            shell.run(command("before"), lambda permit: MADE)
            old.set("behind it", b"")  # WAIT speaks of its own connection's writes alone
            servers.eventually(lambda: old.wait(1, 100) == 1)
            new.replicaof("NO", "ONE")
            name._server = ("127.0.0.1", two.port)
            old.replicaof("127.0.0.1", two.port)
            with pytest.raises(StatementRefused, match="READONLY"):
                shell.run(command("meanwhile"), lambda permit: MADE)
            assert not shell.run(command("meanwhile"), lambda permit: MADE).replayed
            assert shell.run(command("before"), lambda permit: MADE).replayed
    finally:
        stop(two)
        stop(one)


@pytest.mark.parametrize("code", CODES)
def test_another_node_of_a_cluster_is_asked_who_has_its_slots(code: str) -> None:
    """An isolated primary says CLUSTERDOWN as long as it is: its replica has its slots on the other side."""
    routes = Cluster((HERE, THERE))
    call = RedisCall(None, (b"k",), (), "GET")
    told: list[NodeExchange] = []
    for slots, reply in ((HERE, RedisRefused(code, "")), (THERE, b"1")):
        routes._asked = -1e9
        performing = perform(routes, RouteTerms(), [call])
        said = next(performing)
        told += said
        said = performing.send([[[[0, 16383, [slots.host.encode(), slots.port]]]]])
        told += said
        with pytest.raises(StopIteration) as end:
            performing.send([[reply]])
        assert end.value.value == [reply]
    assert [each.node for each in told] == [HERE, HERE, THERE, THERE]
