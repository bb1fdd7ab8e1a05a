"""A Galera cluster: two of its nodes take the same keys at once, and nodes die until the rest is not most of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from semel import Answer, Engine, Permit
from semel.errors import StoreUnavailable
from semel.stores.urls import connect_backend
from tests.nemeses.processes import crash
from tests.servers import galera
from tests.servers.redis import eventually
from verification.nemeses.proxy import Proxy
from verification.nemeses.stage import Stage, Verdict
from verification.soak.command import soak_command
from verification.soak.ground import ground
from verification.soak.worker import Line, Worker, pause

TOGETHER_SECONDS: Final = 1.5
ALONE_SECONDS: Final = 0.5
CONFLICTS: Final = "SHOW STATUS WHERE variable_name IN ('wsrep_local_cert_failures', 'wsrep_local_bf_aborts')"


def url(port: int) -> str:
    """A node."""
    return f"mysql://root@127.0.0.1:{port}/semel"


def two_nodes(folder: Path, home: Path, effects: str, setting: str, seed: int) -> Verdict:
    """Four workers, two on each of two nodes, ask for the same keys: what both grant, one of them may not commit."""
    nodes = galera.start(home / "nodes", 3, *([f"wsrep-{setting.replace(' ', '=')}"] if setting else []))
    try:
        place = ground(url(nodes[0].port), folder, seed)
        second = ground(url(nodes[1].port), folder, seed).url
        stage = Stage(folder, place, effects, seed=seed, urls=[place.url, place.url, second, second])
        verdict = stage.play(lambda: pause(TOGETHER_SECONDS))
        verdict.more["conflicts"] = sum(int(str(count)) for node in nodes for _, count in galera.say(node, CONFLICTS))
        return verdict
    finally:
        galera.stop_all(nodes)


def nodes_lost(folder: Path, home: Path, effects: str, setting: str, seed: int) -> Verdict:
    """Another node dies; then the one that we talk to; the last one refuses, until an operator lets it go on alone."""
    nodes = galera.start(home / "nodes")
    ours, last, other = nodes
    refused = 0
    try:
        with Proxy(ours.port) as front:
            place = ground(url(front.port), folder, seed)

            def nemesis() -> None:
                nonlocal refused
                crash(other.running.pid)
                eventually(lambda: galera.size(ours) == 2)
                pause(ALONE_SECONDS)
                crash(ours.running.pid)
                front.aim(last.port)
                eventually(lambda: galera.size(last) == 0)
                refused = _refusals(place.url, effects)
                pause(ALONE_SECONDS)
                galera.begin_anew(last)

            verdict = Stage(folder, place, effects, seed=seed).play(nemesis)
            verdict.more["refused"] = refused
            return verdict
    finally:
        galera.stop_all(nodes)


def _refusals(url: str, effects: str) -> int:
    """How many of some commands were refused by a node without a quorum, before their handlers ran."""

    def life(line: Line) -> None:
        def handler(permit: Permit) -> Answer:
            raise AssertionError("no node without a quorum may grant anything")

        with closing(Engine(connect_backend(url))) as engine:  # it would not even open
            for number in range(5):
                try:
                    engine.run(soak_command(f"alone {number}", effects), handler)
                except StoreUnavailable as error:
                    line.say("refused" if "point the URL at one that has a quorum" in str(error) else "otherwise")

    asking = Worker(life)
    said = asking.rest()
    assert asking.wait() == 0
    asking.close()
    return said.count(["refused"])


SCENARIOS: Final[dict[str, Callable[[Path, Path, str, str, int], Verdict]]] = {
    "two nodes at once": two_nodes,
    "nodes lost": nodes_lost,
}
