"""Failover that no operator makes: Sentinels promote a replica, and a cluster's replica takes its primary's slots."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import redis

from tests.nemeses.processes import crash
from tests.servers import redis as valkey
from tests.servers import sentinel
from tests.servers.running import Running, stop
from verification.nemeses.proxy import Proxy
from verification.nemeses.stage import Stage, Verdict
from verification.soak.ground import ground
from verification.soak.worker import pause

KEPT: Final = ("appendonly yes", "appendfsync always", "repl-diskless-sync-delay 0")
NODE: Final = ("cluster-require-full-coverage no", *KEPT)
CUT_OFF_SECONDS: Final = 0.7
REFUSED: Final = ("masteruser nobody", "masterauth nothing")  # a replica that comes with these is not let in


def options(setting: str) -> str:
    """Of the URL: each claim and settlement gets ``wait 2``, and an operator repairs what is broken."""
    return f"?wait_replicas={setting.partition(' ')[2]}" if setting.startswith("wait ") else ""


def say(server: Running, *words: object) -> Any:
    """A command, on one server alone."""
    with redis.Redis(port=server.port) as client:
        return client.execute_command(*words)


def sentinels(folder: Path, home: Path, effects: str, setting: str, seed: int) -> Verdict:
    """The primary dies shortly after its replicas were cut off from it; the Sentinels find another."""
    with ExitStack() as stack:
        primary = valkey.start(home / "primary", *KEPT)
        wire = stack.enter_context(Proxy(primary.port))  # it forks: before there is anything that must not be
        stack.callback(stop, primary)
        replicas = [_replica(home / f"replica-{number}", wire.port, stack) for number in range(2)]
        for each in replicas:
            valkey.eventually(lambda each=each: b"connected" in say(each, "ROLE"))  # type: ignore[misc]
        guards = sentinel.start(home / "sentinels", primary.port)
        for guard in guards:
            stack.callback(stop, guard)
        for each in replicas:  # through the wire they would look for it where it does not listen
            valkey.eventually(lambda each=each: _knows(guards, each))  # type: ignore[misc]

        def nemesis() -> None:
            wire.stop()
            pause(CUT_OFF_SECONDS)
            crash(primary.pid)
            valkey.eventually(lambda: _is_over(guards, primary, replicas))
            if options(setting):  # two replicas have to confirm: an operator starts the third server again
                back = valkey.start(
                    home / "primary",
                    *KEPT,
                    f"replicaof 127.0.0.1 {sentinel.primary(guards[0].port)}",
                    port=primary.port,
                )
                stack.callback(stop, back)
                valkey.eventually(lambda: b"connected" in say(back, "ROLE"))

        place = ground(sentinel.url(guards, options(setting)), folder, seed)
        return Stage(folder, place, effects, seed=seed).play(nemesis)


def _replica(home: Path, of: int, stack: ExitStack) -> Running:
    replica = valkey.start(home, *KEPT, f"replicaof 127.0.0.1 {of}")
    stack.callback(stop, replica)
    return replica


def _knows(guards: list[Running], replica: Running) -> bool:
    return all(str(replica.port) in str(say(guard, "SENTINEL", "REPLICAS", sentinel.SERVICE)) for guard in guards)


def _is_over(guards: list[Running], old: Running, replicas: list[Running]) -> bool:
    """In the end all name the same one, and the rest follow it: two Sentinels may each have made a failover."""
    named = {sentinel.primary(guard.port) for guard in guards}
    roles = {each.port: say(each, "ROLE") for each in replicas}
    following = [role[2] for role in roles.values() if role[0] == b"slave" and role[3] == b"connected"]
    return len(named) == 1 and named == set(following) and old.port not in named


def cluster(folder: Path, home: Path, effects: str, setting: str, seed: int) -> Verdict:
    """One of three primaries dies shortly after its replica was cut off from it; the replica takes its slots."""
    with ExitStack() as stack:
        nodes = valkey.start_nodes(home, 6, *NODE)
        for node in nodes:
            stack.callback(stop, node)
        valkey.join(nodes, replicas=3)
        primary, replica = nodes[0], nodes[3]

        def nemesis() -> None:
            for words in REFUSED:
                say(replica, "CONFIG", "SET", *words.split(" "))
            say(replica, "CLIENT", "KILL", "TYPE", "MASTER")
            pause(CUT_OFF_SECONDS)
            crash(primary.pid)
            valkey.eventually(lambda: say(replica, "ROLE")[0] == b"master")
            for words in REFUSED:
                say(replica, "CONFIG", "SET", words.split(" ")[0], "")
            if options(setting):  # a replica has to confirm: an operator starts the old primary again, which follows
                back = valkey.resume_node(primary, *NODE)
                stack.callback(stop, back)
                valkey.eventually(lambda: b"connected" in say(back, "ROLE"))

        url = f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in nodes)}{options(setting)}"
        return Stage(folder, ground(url, folder, seed), effects, seed=seed).play(nemesis)


SCENARIOS: Final[dict[str, Callable[[Path, Path, str, str, int], Verdict]]] = {
    "sentinel failover, cut off": sentinels,
    "cluster failover, cut off": cluster,
}
