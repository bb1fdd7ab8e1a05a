"""Sentinels before a primary with replicas: they agree after some seconds that it is gone, and promote a replica."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from redis import Redis

from tests.servers import redis as servers
from tests.servers.needed import program
from tests.servers.running import Running, free_port, launch, share_server

SERVICE: Final = "shop"
SETTINGS: Final = """bind 127.0.0.1
dir {folder}
sentinel monitor {service} 127.0.0.1 {primary} {quorum}
sentinel down-after-milliseconds {service} {down_ms}
sentinel failover-timeout {service} 4000
sentinel parallel-syncs {service} 2
"""


def start_watching() -> int:
    """The port of this run's Sentinel, which watches a server of its own: the system's Redis."""
    return share_server("sentinel", _start_watched).port


def _start_watched(folder: Path) -> Running:
    server = servers.start(folder / "redis", "appendonly yes", of=program("redis"))
    (folder.parent / "sentinel-redis.json").write_text(json.dumps(asdict(server)))  # the run ends what it finds noted
    (one,) = start(folder / "sentinels", server.port, 1)
    return one


def start(folder: Path, primary: int, count: int = 3, *more: str, down_ms: int = 1500) -> list[Running]:
    """Start so many Sentinels, and wait until each knows the others and the primary's replicas."""
    folder.mkdir(exist_ok=True)
    running = [_one(folder / str(number), primary, count, more, down_ms) for number in range(count)]
    if not more:  # such as a password
        servers.eventually(lambda: all(_others(each.port) == count - 1 for each in running))
    return running


def _one(folder: Path, primary: int, count: int, more: tuple[str, ...], down_ms: int) -> Running:
    folder.mkdir()
    settings = SETTINGS.format(folder=folder, service=SERVICE, primary=primary, quorum=count // 2 + 1, down_ms=down_ms)

    port = free_port()
    file = folder / "sentinel.conf"  # the Sentinel writes into it what it learns
    file.write_text(f"port {port}\n{settings}" + "".join(f"{line}\n" for line in more))
    return launch([str(servers.program()), str(file), "--sentinel"], folder, port, lambda: servers.answers(port))


def _others(port: int) -> int:
    with Redis(port=port) as client:
        reply: Any = client.execute_command("SENTINEL", "SENTINELS", SERVICE)
        return len(reply)


def primary(port: int) -> int:
    """The port of the server that this Sentinel names."""
    with Redis(port=port) as client:
        reply: Any = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return int(reply[1])


def url(sentinels: list[Running], options: str = "") -> str:
    """The URL by which Semel reaches the current primary."""
    return f"redis+sentinel://{','.join(f'127.0.0.1:{each.port}' for each in sentinels)}/{SERVICE}{options}"
