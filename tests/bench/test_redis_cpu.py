"""The probe of redis-server's CPU time asks what it says it asks."""

from __future__ import annotations

from redis import Redis

from bench.redis_cpu import measure
from tests.servers import redis as servers


def test_every_round_of_each_is_measured() -> None:
    port = servers.valkey()
    with Redis(port=port) as client:
        pid = client.info("server")["process_id"]
    found = measure(port, pid, batch=3, rounds=2)
    assert {name: len(each) for name, each in found.items()} == {"claim": 2, "settle": 2, "replay": 2}
    assert all(spent > 0 for each in found.values() for spent in each)
