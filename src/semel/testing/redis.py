"""The Redis store as a subject of the conformance suite: a prefix of its own on a server that runs."""

from __future__ import annotations

import redis

from semel.engine.backend import Backend
from semel.engine.connect_redis import redis_backend
from semel.model import Record
from semel.stores.redis import RedisStore
from semel.stores.redis_layout import decode, encode
from semel.testing.bench import Subject
from semel.testing.clock import SettableClock


def redis_subject(url: str, prefix: str, clock: SettableClock) -> Subject:
    """An empty prefix on the server that ``url`` names; whatever it held is dropped."""
    store = RedisStore(prefix)
    with redis.Redis.from_url(url) as client:
        for key in client.scan_iter(match=f"*{prefix}:*", count=1000):
            client.delete(key)

    def opened() -> Backend:
        return redis_backend(url, prefix=prefix, clock=clock)

    def corrupt(row: Record) -> None:
        key = store._record_key(row.id)
        with redis.Redis.from_url(url) as client:
            known = client.get(key)
            assert isinstance(known, bytes)
            client.set(key, encode(decode(known)._replace(state=row.state, body=row.body)))

    return Subject(opened(), corrupt, opened)
