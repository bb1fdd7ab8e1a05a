"""The Redis driver: calls in one round trip each, through redis-py, in threads and on event loops.

redis-py repeats what it believes lost, by default. Here it never does: an answer that was lost is not known yet, and
it is for the engine to read back by the claim's nonce. Only what surely did not run is sent again: a script that the
server had forgotten (NOSCRIPT), and in a cluster what a node refused because the slot had moved.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.connection import BlockingConnectionPool as AsyncPool
from redis.backoff import NoBackoff
from redis.connection import BlockingConnectionPool
from redis.retry import Retry

from semel.drivers.clock import Clock
from semel.drivers.redis_errors import store_error
from semel.errors import StoreUnavailable
from semel.flow import Ask, MakeFlow
from semel.stores.scripts import Call, Calls, Scan

T = TypeVar("T")
NO_RETRY: Final = 0


@dataclass(frozen=True, slots=True)
class Server:
    """Where a Redis store is.

    Parameters: ``url`` as redis-py takes it (``redis://``, ``rediss://``, ``unix://``); ``connections_max`` per process
    (and per event loop); ``patience_seconds`` how long a call may wait for a connection, and then for its answer;
    ``wait_replicas`` and ``wait_seconds``: how many replicas must have each write, and how long they may take;
    ``clock`` in microseconds replaces the server's own (tests).
    """

    url: str
    connections_max: int = 8
    patience_seconds: float = 5.0
    wait_replicas: int = 0
    wait_seconds: float = 1.0
    clock: Clock | None = None

    def arguments(self, call: Call) -> tuple[Any, ...]:
        """A call as a command."""
        if call.script is None:
            return (call.command, *call.keys, *call.arguments)
        now = b"" if self.clock is None else self.clock()
        return ("EVALSHA", call.script.sha, len(call.keys), *call.keys, now, *call.arguments)

    def options(self) -> dict[str, Any]:
        """What both forms of redis-py are told."""
        return {
            "max_connections": self.connections_max,
            "timeout": self.patience_seconds,
            "socket_timeout": self.patience_seconds,
            "socket_connect_timeout": self.patience_seconds,
            "socket_keepalive": True,
            "retry_on_timeout": False,
            "retry_on_error": [],
            "client_name": "semel",
        }


class RedisDriver:
    """Runs the Redis store's flows. Connects when first used; safe after a fork, and on any event loop."""

    coalesces = True

    def __init__(self, server: Server) -> None:
        self.server = server
        self._inherited: list[object] = []
        self._begin_process()

    def _begin_process(self) -> None:
        self._pid = os.getpid()
        self._client: redis.Redis | None = None
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncRedis] = weakref.WeakKeyDictionary()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            self._inherited += [self._client, self._loops]
            self._begin_process()

    # --- threads ----------------------------------------------------------------------------

    def run(self, make: MakeFlow[T]) -> T:
        """Run a flow from an ordinary thread.

        Raises:
            StoreUnavailable: the server cannot be reached or refuses; nothing was written by that call.
            StoreTimeout: the answer was lost; whether it took effect is not known yet.
        """
        client = self._of_threads()
        flow = make()
        try:
            needed = next(flow)
            while True:
                needed = flow.send(self._answer(client, needed))
        except StopIteration as stop:
            result: T = stop.value
            return result
        except (redis.RedisError, OSError) as error:
            raise store_error(error) from error

    def _of_threads(self) -> redis.Redis:
        self._check_process()
        if self._client is None:
            retry = Retry(NoBackoff(), NO_RETRY)
            pool = BlockingConnectionPool.from_url(self.server.url, retry=retry, **self.server.options())
            self._client = redis.Redis(connection_pool=pool)
        return self._client

    def _answer(self, client: redis.Redis, needed: Ask[Any]) -> Any:
        if type(needed) is Scan:
            reply: Any = client.scan(needed.after, match=needed.prefix + b"*", count=needed.count)
            return _scanned(reply)
        assert type(needed) is Calls
        replies = self._send(client, needed.calls)
        again = missing(replies)
        if again:
            for script in {needed.calls[place].script for place in again}:
                assert script is not None
                client.script_load(script.text)
            for place, reply in zip(again, self._send(client, [needed.calls[each] for each in again]), strict=True):
                replies[place] = reply
        raise_first(replies)
        if self.server.wait_replicas and writes(needed.calls):
            self._check_replicas(client.wait(self.server.wait_replicas, round(self.server.wait_seconds * 1000)))
        return replies

    def _send(self, client: redis.Redis, calls: Any) -> list[Any]:
        pipe = client.pipeline(transaction=False)
        for call in calls:
            pipe.execute_command(*self.server.arguments(call))  # type: ignore[no-untyped-call]
        replies: list[Any] = pipe.execute(raise_on_error=False)
        return replies

    def _check_replicas(self, reached: Any) -> None:
        if int(reached) < self.server.wait_replicas:
            raise StoreUnavailable(
                f"Redis: written, but {reached} of {self.server.wait_replicas} replicas have confirmed it; "
                "retry with the same key"
            )

    def close(self) -> None:
        """Close what is idle. The driver may be used again."""
        self._check_process()
        client, self._client = self._client, None
        if client is not None:
            client.close()
            client.connection_pool.disconnect()

    # --- event loops ------------------------------------------------------------------------

    async def run_async(self, make: MakeFlow[T]) -> T:
        """Run a flow from an event loop, in a task of its own: a cancelled caller cuts nothing. Raises as ``run``."""
        task = asyncio.get_running_loop().create_task(self.run_uncut(make))
        result: T = await asyncio.shield(task)
        return result

    async def run_uncut(self, make: MakeFlow[T]) -> T:
        """As ``run_async``, for a task of the engine's that nobody cancels."""
        client = self._of_loop()
        flow = make()
        try:
            needed = next(flow)
            while True:
                needed = flow.send(await self._answer_async(client, needed))
        except StopIteration as stop:
            result: T = stop.value
            return result
        except (redis.RedisError, OSError) as error:
            raise store_error(error) from error

    def _of_loop(self) -> AsyncRedis:
        self._check_process()
        loop = asyncio.get_running_loop()
        client = self._loops.get(loop)
        if client is None:
            from redis.asyncio.retry import Retry as AsyncRetry

            retry = AsyncRetry(NoBackoff(), NO_RETRY)
            pool = AsyncPool.from_url(self.server.url, retry=retry, **self.server.options())
            client = self._loops[loop] = AsyncRedis(connection_pool=pool)
        return client

    async def _answer_async(self, client: AsyncRedis, needed: Ask[Any]) -> Any:
        if type(needed) is Scan:
            reply: Any = await client.scan(needed.after, match=needed.prefix + b"*", count=needed.count)
            return _scanned(reply)
        assert type(needed) is Calls
        replies = await self._send_async(client, needed.calls)
        again = missing(replies)
        if again:
            for script in {needed.calls[place].script for place in again}:
                assert script is not None
                await client.script_load(script.text)
            sent = await self._send_async(client, [needed.calls[each] for each in again])
            for place, reply in zip(again, sent, strict=True):
                replies[place] = reply
        raise_first(replies)
        if self.server.wait_replicas and writes(needed.calls):
            self._check_replicas(await client.wait(self.server.wait_replicas, round(self.server.wait_seconds * 1000)))
        return replies

    async def _send_async(self, client: AsyncRedis, calls: Any) -> list[Any]:
        pipe = client.pipeline(transaction=False)
        for call in calls:
            pipe.execute_command(*self.server.arguments(call))
        replies: list[Any] = await pipe.execute(raise_on_error=False)
        return replies

    async def close_async(self) -> None:
        """Close the connections of this loop, and the threads'. The driver may be used again."""
        self._check_process()
        client = self._loops.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()
            await client.connection_pool.disconnect()
        self.close()


def missing(replies: list[Any]) -> list[int]:
    """Which calls did not run because the server had not got their script."""
    return [place for place, reply in enumerate(replies) if isinstance(reply, redis.exceptions.NoScriptError)]


def raise_first(replies: list[Any]) -> None:
    """Raise the first error among replies."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply


def writes(calls: tuple[Call, ...]) -> bool:
    """Whether one of these may have written."""
    return any(call.script is not None and call.script.name not in ("look", "due") for call in calls)


def _scanned(reply: Any) -> tuple[int | None, list[bytes]]:
    following, keys = reply
    return int(following) or None, list(keys)


__all__ = ["RedisDriver", "Server", "missing", "raise_first", "writes"]
