"""A cluster that changes under the engine: slots move, a node hangs, a primary dies and its replica takes over."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from semel import AsyncEngine, Permit
from semel.core.model import Find, Found
from semel.errors import StoreError, StoreUnavailable
from semel.stores.backend import Backend
from semel.stores.redis.routes import ROUNDS_MAX, Cluster, Node, NodeExchange, RedisRefused, RouteTerms, perform, slot
from semel.stores.redis.scripts import RedisCall
from tests.engine.shells import MADE, Mode, Shell, command
from tests.redis.conftest import backend
from tests.servers import redis as servers
from tests.servers.running import Running, stop
from tests.service.served import await_true

MANY = 30  # commands, over all nodes
PATIENCE_SECONDS = 1.0


class Story:
    """Three primaries, a replica of the first, and both engines on them."""

    def __init__(self, nodes: list[Running], stack: ExitStack) -> None:
        self.nodes = nodes
        self.clients: list[Any] = [stack.enter_context(closing(Redis(port=node.port))) for node in nodes]
        self.shells = [self._shell("sync", stack), self._shell("async", stack)]

    def _shell(self, mode: Mode, stack: ExitStack) -> Shell:
        shell = Shell(mode, self.backend(), confirm_seconds=5)
        stack.callback(shell.close)
        shell.open()
        return shell

    def backend(self) -> Backend:
        return backend(self.nodes[1].port, cluster=True, accepts_loss=True, patience_seconds=PATIENCE_SECONDS)

    def run_all(self, name: str) -> set[bool]:
        """Which of many commands were replayed, on both engines."""
        runs = [(shell, command(f"{name} {number}")) for shell in self.shells for number in range(MANY)]
        return {shell.run(what, lambda permit: MADE, wait_seconds=5).replayed for shell, what in runs}

    def pid(self, number: int) -> int:
        return int(self.clients[number].info("server")["process_id"])

    def slots(self, number: int) -> list[int]:
        """The slots of a node that a store's records lie in."""
        ranges = self.clients[1].execute_command("CLUSTER", "SLOTS")
        mine = [set(range(int(a), int(b) + 1)) for a, b, node, *_ in ranges if node[1] == self.nodes[number].port]
        tags = [slot(tag) for shell in self.shells for tag in shell.engine.store.keys.tags]
        return sorted(set(tags) & set().union(*mine))


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    settings = ("repl-diskless-sync-delay 0", "cluster-require-full-coverage no", "shutdown-timeout 0")
    nodes = servers.start_nodes(tmp_path, 4, *settings)
    try:
        servers.join(nodes, replicas=1)
        with ExitStack() as stack:
            yield Story(nodes, stack)
    finally:
        for node in nodes:
            stop(node)


def test_a_cluster_that_changes(story: Story) -> None:
    """One story, because a cluster takes its time to begin."""
    assert story.run_all("before") == {False}
    slots_that_move_are_followed(story)
    a_node_that_hangs_holds_up_nobody_else(story)
    a_primary_that_dies_is_replaced(story)
    found: list[Found] = []
    all_of_them = Find(limit=500)

    def are_found() -> bool:
        """A node that has just met the new primary may say for a moment that the cluster is down."""
        try:
            found[:] = [shell.perform("find", partial(shell.engine.store.find, all_of_them)) for shell in story.shells]
        except StoreError:
            return False
        return True

    await_true(are_found, "a cluster that is whole again", 60)
    assert all(len({row.id for row in page.records}) >= 2 * MANY for page in found)


def slots_that_move_are_followed(story: Story) -> None:
    """A slot that is on its way holds keys here and there: its commands are refused until it has arrived."""
    source, target = story.clients[1], story.clients[2]
    ours, theirs = (each.execute_command("CLUSTER", "MYID") for each in (source, target))
    moving = story.slots(1)
    assert moving
    for number in moving:
        target.execute_command("CLUSTER", "SETSLOT", number, "IMPORTING", ours)
        source.execute_command("CLUSTER", "SETSLOT", number, "MIGRATING", theirs)
        keys = source.execute_command("CLUSTER", "GETKEYSINSLOT", number, 1000)
        if keys:
            source.execute_command("MIGRATE", "127.0.0.1", story.nodes[2].port, "", 0, 5000, "KEYS", *keys)
    for shell in story.shells:
        told = [whether_replayed(shell, f"before {number}") for number in range(MANY)]
        # A look has one key, which is here or there; a claim has several.
        refused = set() if isinstance(shell.engine, AsyncEngine) else {"on its way to another node"}
        assert set(told) == {True, *refused}
        told = [whether_replayed(shell, f"meanwhile {number}") for number in range(MANY)]
        assert set(told) == {False, "on its way to another node"}
    for number in moving:
        for each in (target, source):
            each.execute_command("CLUSTER", "SETSLOT", number, "NODE", theirs)
    assert story.slots(1) == []
    assert story.run_all("before") == {True}
    assert True in story.run_all("meanwhile")


def whether_replayed(shell: Shell, name: str) -> bool | str:
    """Or why it was refused, in which case nothing ran."""
    ran: list[Permit] = []
    try:
        return shell.run(command(name), lambda permit: ran.append(permit) or MADE).replayed  # type: ignore[func-returns-value]
    except StoreUnavailable as error:
        assert ran == []
        return "on its way to another node" if "on its way to another node" in str(error) else str(error)


def a_node_that_hangs_holds_up_nobody_else(story: Story) -> None:
    """Its own commands fail in bounded time; those of others, sent in the same moment, do not wait for it."""
    hung = f"127.0.0.1:{story.nodes[2].port}"

    async def all_at_once() -> list[tuple[str, bool, float]]:
        made = story.backend()
        engine = AsyncEngine(made)
        await engine.migrate()
        async with engine:
            await engine.perform("counts", engine.store.counts)  # it knows the cluster

            async def one(number: int) -> tuple[str, bool, float]:
                what = command(f"hanging {number}")
                assert made.lane is not None
                lane, begun = made.lane(engine.core.attempt(what).id), time.monotonic()
                try:
                    met = await engine.claim(what)
                except StoreError:
                    return lane, False, time.monotonic() - begun
                assert isinstance(met, Permit)
                return lane, True, time.monotonic() - begun

            os.kill(pid, signal.SIGSTOP)
            try:
                return await asyncio.gather(*(one(number) for number in range(MANY)))
            finally:
                os.kill(pid, signal.SIGCONT)
                engine.core.live.clear()

    pid = story.pid(2)
    told = asyncio.run(all_at_once())
    assert {lane == hung for lane, _, _ in told} == {True, False}
    for lane, granted, seconds in told:
        assert granted is (lane != hung)
        assert seconds < (PATIENCE_SECONDS * 3 if lane == hung else PATIENCE_SECONDS)


def a_primary_that_dies_is_replaced(story: Story) -> None:
    """Until then its commands are refused in bounded time, and afterwards the engines go on by themselves."""
    servers.eventually(lambda: story.clients[0].wait(1, 100) == 1)
    os.kill(story.pid(0), signal.SIGKILL)
    for shell in story.shells:
        refused = 0
        for number in range(MANY):
            begun = time.monotonic()
            try:
                assert shell.run(command(f"before {number}"), lambda permit: MADE).replayed
            except StoreError:
                refused += 1
            assert time.monotonic() - begun < PATIENCE_SECONDS * 4
        assert refused < MANY  # the other nodes serve

    def is_healed() -> bool:
        try:
            return story.run_all("before") == {True}
        except StoreUnavailable:
            return False

    servers.eventually(is_healed)
    assert story.run_all("afterwards") == {False}


# --- the map itself -------------------------------------------------------------------------------

A, B = Node("a", 1), Node("b", 2)
MAP = [[0, 16383, [b"a", 1, b"id"]]]


def exchanges_of(routes: Cluster, replies: list[Any]) -> list[NodeExchange]:
    """Return what one call sends, if it gets these replies in turn."""
    performing = perform(routes, RouteTerms(), [RedisCall(None, (b"k",), (), "GET")])
    sent = next(performing)
    said = list(sent)
    for reply in replies:
        sent = performing.send([reply])
        said += sent
    return said


def test_redirects_of_a_call_are_bounded() -> None:
    moved = [[RedisRefused("MOVED", f"12345 {'b:2' if n % 2 == 0 else 'a:1'}")] for n in range(ROUNDS_MAX)]
    with pytest.raises(StoreUnavailable, match="from node to node"):
        exchanges_of(Cluster((A,)), [[MAP], *moved])


def test_asking_is_sent_once_before_the_call() -> None:
    sent = exchanges_of(Cluster((A,)), [[MAP], [RedisRefused("ASK", "12345 b:2")]])
    assert [(each.node, [words[0] for words in each.commands]) for each in sent[1:]] == [
        (A, ["GET"]),
        (B, ["ASKING", "GET"]),
    ]


def test_the_map_comes_from_the_next_node_if_one_is_unreachable() -> None:
    sent = exchanges_of(Cluster((B, A)), [StoreUnavailable("away"), [MAP]])
    assert [each.node for each in sent] == [B, A, A]
    with pytest.raises(StoreUnavailable, match="away"):
        exchanges_of(Cluster((B,)), [StoreUnavailable("away")])
    with pytest.raises(StoreUnavailable, match="serves a part"):
        exchanges_of(Cluster((A,)), [[[[0, 1, [b"a", 1]]]]])


def test_a_node_without_a_name_is_the_one_that_was_asked() -> None:
    routes = Cluster((A,))
    exchanges_of(routes, [[[[0, 16383, [b"", 7]]]]])
    assert routes.node_of(b"k") == Node("a", 7)
