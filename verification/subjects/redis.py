"""The Redis store as a subject of the conformance suite: a separate prefix on a running server or cluster."""

from __future__ import annotations

from typing import Any

from redis import Redis
from redis.cluster import RedisCluster
from redis.sentinel import Sentinel

from semel.core.model import Record
from semel.stores.backend import Backend
from semel.stores.redis.keys import Keys
from semel.stores.redis.layout import decode, encode
from semel.stores.redis.url import redis_backend
from semel.testing.bench import Subject
from semel.testing.clock import SettableClock


def redis_subject(
    host: str, port: int, prefix: str, clock: SettableClock, *, cluster: bool = False, service: str = ""
) -> Subject:
    """A store on the server (or the ``cluster``, or the ``service`` of the Sentinel) at ``host``:``port``.

    Parameters: ``prefix`` one that nothing has used before on that server: the store is to be empty.
    """

    def open_backend() -> Backend:
        return redis_backend(((host, port),), cluster=cluster, service=service, prefix=prefix, clock=clock)

    def plain() -> Any:
        if service:
            sentinel: Any = Sentinel  # which is not typed
            where, at = sentinel([(host, port)]).discover_master(service)
            return Redis(host=where, port=at)
        return RedisCluster(host=host, port=port) if cluster else Redis(host=host, port=port)

    def corrupt(row: Record) -> None:
        key = Keys(prefix).record(row.id)
        with plain() as client:
            known = client.get(key)
            assert isinstance(known, bytes)
            client.set(key, encode(decode(known)._replace(state=row.state, body=row.body)))

    return Subject(open_backend(), corrupt, open_backend)
