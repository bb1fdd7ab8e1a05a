"""Report how a Redis server's settings limit the store's promise, as far as INFO shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from semel.core.contract import Observed
from semel.core.flow import Flow, ask
from semel.stores.redis.scripts import Calls, RedisCall

VERSION_MIN: Final = (7, 0)
_SECTIONS: Final = (b"server", b"memory", b"persistence", b"replication")
_UPGRADE: Final = "upgrade to Redis 7.0, Valkey 7.2 or newer"


def observe(tags: tuple[bytes, ...], wait_replicas: int) -> Flow[list[Observed]]:
    """Read the settings of every server that holds a part of the records.

    Parameters: ``tags`` the keys' beginnings, which lie on all nodes of a cluster; ``wait_replicas`` of the URL.
    """
    calls = tuple([RedisCall(None, (), _SECTIONS, "INFO", at=tag) for tag in tags])
    servers = {facts.get("run_id", ""): facts for facts in map(info, (yield from ask(Calls(calls))))}
    found: dict[Observed, None] = {}
    for facts in servers.values():
        found.update(dict.fromkeys(_judge(facts, wait_replicas)))
    return list(found)


def setting(tags: tuple[bytes, ...], name: str) -> Flow[set[str]]:
    """Read one setting on all servers. Many hosts of Redis refuse CONFIG to their users."""
    calls = tuple([RedisCall(None, (), (b"GET", name.encode()), "CONFIG", at=tag) for tag in tags])
    return {bytes(value).decode() for reply in (yield from ask(Calls(calls))) for value in reply[1::2]}


def memory(tags: tuple[bytes, ...]) -> Flow[set[tuple[int, int]]]:
    """Read the bytes in use and allowed (0: no bound) of each server."""
    calls = tuple([RedisCall(None, (), (b"server", b"memory"), "INFO", at=tag) for tag in tags])
    # A server is asked once for each tag, and has a little more in use each time.
    servers = {facts.get("run_id", ""): facts for facts in map(info, (yield from ask(Calls(calls))))}
    return {(int(each.get("used_memory", "0")), int(each.get("maxmemory", "0"))) for each in servers.values()}


def info(text: bytes) -> Mapping[str, str]:
    """Parse the fields of an INFO reply.

    >>> info(b"# Server\\r\\nredis_version:7.0.15\\r\\nrole:master\\r\\n")["role"]
    'master'
    """
    lines = text.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _judge(facts: Mapping[str, str], wait_replicas: int) -> Iterator[Observed]:
    yield _version(facts)
    if facts.get("role") == "slave":
        yield Observed("role", "unusable", "the server is a replica", "point the URL at the primary")
    yield _eviction(facts)
    if facts.get("aof_enabled") != "1":
        yield Observed(
            "persistence",
            "forgets",
            "the server keeps no append-only file: a restart loses acknowledged writes",
            "set appendonly yes",
        )
    elif facts.get("aof_last_write_status", "ok") != "ok":
        yield Observed(
            "persistence", "warning", "the last write to the append-only file failed", "make room on its disk"
        )
    else:
        yield Observed("persistence", "ok", "append-only file")
    yield from _replicas(facts, wait_replicas)


def _version(facts: Mapping[str, str]) -> Observed:
    name = "Valkey" if "valkey_version" in facts else "Redis"
    text = facts.get("valkey_version") or facts.get("redis_version", "")
    parts = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if parts < VERSION_MIN:
        return Observed("version", "unusable", f"the server is {name} {text}, which cannot run the scripts", _UPGRADE)
    return Observed("version", "ok", f"{name} {text}")


def _eviction(facts: Mapping[str, str]) -> Observed:
    policy, most = facts.get("maxmemory_policy", "noeviction"), facts.get("maxmemory", "0")
    if policy == "noeviction":
        return Observed("eviction", "ok", "noeviction: a full server refuses new commands and forgets none")
    if most == "0":
        return Observed(
            "eviction",
            "warning",
            f"maxmemory-policy is {policy}: with a maxmemory it would evict records",
            "set maxmemory-policy noeviction",
        )
    return Observed(
        "eviction",
        "forgets",
        f"maxmemory-policy is {policy}: a full server drops records",
        "set maxmemory-policy noeviction",
    )


def _replicas(facts: Mapping[str, str], wait_replicas: int) -> Iterator[Observed]:
    connected = int(facts.get("connected_slaves", "0"))
    if connected < wait_replicas:
        yield Observed(
            "replicas",
            "warning",
            f"wait_replicas={wait_replicas}, and {connected} replicas are connected: nothing will be granted",
            "connect more replicas, or lower wait_replicas",
        )
    elif connected and not wait_replicas:
        yield Observed(
            "replicas",
            "warning",
            "a failover to a replica loses writes that have not reached it yet",
            "add ?wait_replicas=1 to the URL; it narrows the gap and does not close it",
        )
    elif connected:
        yield Observed("replicas", "ok", f"{wait_replicas} of {connected} replicas confirm each claim and settlement")


__all__ = ["info", "memory", "observe", "setting"]
