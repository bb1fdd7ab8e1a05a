"""A Galera cluster of MariaDB servers: each has all of it, and takes writes as long as most of them hear each other."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pymysql

from tests.servers import mariadb
from tests.servers.redis import eventually
from tests.servers.running import Running, free_port, own, stop

PROVIDER: Final = Path("/usr/lib/galera/libgalera_smm.so")
# A node that is silent for a second is suspected. These belong together: some of them alone Galera refuses.
PATIENCE: Final = (
    "evs.keepalive_period=PT0.25S;evs.inactive_check_period=PT0.25S;evs.suspect_timeout=PT1S;"
    "evs.inactive_timeout=PT5S;evs.install_timeout=PT4S;gcache.size=8M"
)
RACE: Final = "Failed to read thread schedparams"
STARTS_MAX: Final = 4


@dataclass(slots=True)
class Node:
    """One node: its server, and the port on which the others hear it."""

    running: Running
    group_port: int

    @property
    def port(self) -> int:
        """Where clients connect."""
        return self.running.port


def start(folder: Path, count: int = 3, *settings: str) -> list[Node]:
    """Start a cluster: the first node begins it, each other takes a copy of all data (rsync) when it joins."""
    nodes: list[Node] = []
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    for number in range(count):
        nodes.append(_join(folder / str(number), nodes, settings))
    eventually(lambda: all(size(node) == count for node in nodes))
    return nodes


def _join(folder: Path, others: list[Node], settings: tuple[str, ...]) -> Node:
    folder.mkdir()
    group = free_port()
    members = ",".join(f"127.0.0.1:{node.group_port}" for node in others)
    settled = (
        f"wsrep-provider={PROVIDER}",
        "wsrep-on=ON",
        "binlog-format=ROW",
        "innodb-autoinc-lock-mode=2",
        f"wsrep-cluster-address=gcomm://{members}",
        "wsrep-sst-method=rsync",
        "wsrep-node-address=127.0.0.1",
        f"wsrep-node-name={folder.name}",
        f"wsrep-sst-receive-address=127.0.0.1:{free_port()}",
        f"wsrep-provider-options={PATIENCE};gmcast.listen_addr=tcp://127.0.0.1:{group};"
        f"ist.recv_addr=127.0.0.1:{free_port()}",
        *settings,
    )
    folder.chmod(0o755)
    own(folder, mariadb.USER)
    if others:  # the copy brings the tables of the server's own as well
        (folder / "data").mkdir()
        own(folder / "data", mariadb.USER)
    else:
        mariadb.install(folder)
    return Node(_begin(folder, settled), group)


def _begin(folder: Path, settings: tuple[str, ...]) -> Running:
    """Galera's thread reads its own priority, now and then before it is there; then it ends."""
    for _ in range(STARTS_MAX - 1):
        try:
            return mariadb.resume(folder, free_port(), *settings)
        except AssertionError as error:
            if RACE not in str(error):
                raise
    return mariadb.resume(folder, free_port(), *settings)


def stop_all(nodes: list[Node]) -> None:
    """End what is left of it."""
    for node in nodes:
        stop(node.running)


def say(node: Node, text: str) -> list[tuple[object, ...]]:
    """A statement on one node."""
    with closing(mariadb.connect(node.port)) as connection, connection.cursor() as cursor:
        cursor.execute(text)
        return list(cursor.fetchall())


def size(node: Node) -> int:
    """How many nodes this one hears, itself among them; 0 where it has lost the others."""
    try:
        told = {name: str(value) for name, value in say(node, "SHOW STATUS LIKE 'wsrep_cluster_%'")}
    except pymysql.Error:
        return -1
    return int(told["wsrep_cluster_size"]) if told["wsrep_cluster_status"] == "Primary" else 0


def begin_anew(node: Node) -> None:
    """Do what an operator does with the one node that is to go on alone."""
    say(node, "SET GLOBAL wsrep_provider_options = 'pc.bootstrap=1'")
    eventually(lambda: size(node) > 0)
