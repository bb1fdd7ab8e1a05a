"""Connections to Redis nodes, in threads and on event loops: one exchange, one round trip, sent once.

redis-py only speaks the protocol here: its clients and pools retry what they assume lost, but its connections do not.
An idle connection is checked before each use, because the server may have closed it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import redis
from redis.asyncio import connection as aio
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.retry import Retry

from semel.errors import StoreError
from semel.stores.deadline import Deadline
from semel.stores.loops import cut
from semel.stores.pool import AsyncConnectionPool, ConnectionPool
from semel.stores.redis.errors import REFUSALS, cannot_connect, error_reply, judge_lost
from semel.stores.redis.packing import NOT_YET, new_reader, pack
from semel.stores.redis.routes import TAKEN_OVER, Cluster, KeyRoutes, Node, NodeExchange, Replies, RouteTerms, Single
from semel.stores.redis.sentinel import Sentinel

NO_RETRIES: Final = 0
READ_BYTES: Final = 1 << 16  # at a time


@dataclass(frozen=True, slots=True)
class RedisServer:
    """The address and options of a Redis store's servers.

    Parameters: ``nodes`` the server, some nodes of a ``cluster``, or the Sentinels of ``service``, which get user and
    password with ``sentinel_auth``; ``tls`` whether the connection is encrypted;
    ``options`` of redis-py's connections (username, password, db, ssl_…); ``connections_max`` to each node, per
    process and per event loop; ``patience_seconds`` how long a call may take, with its waits for its turn and for a
    connection; ``terms`` what goes with each call: the replicas waited for, a clock for tests.
    """

    nodes: tuple[Node, ...]
    cluster: bool = False
    tls: bool = False
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    connections_max: int = 8
    patience_seconds: float = 5.0
    terms: RouteTerms = field(default_factory=RouteTerms)
    service: str = ""
    sentinel_auth: bool = False

    def routes(self) -> KeyRoutes:
        """Make the routes: which node answers for which key."""
        if self.service:
            return Sentinel(self.service, self.nodes)
        return Cluster(self.nodes) if self.cluster else Single(self.nodes[0])

    def settings(self, node: Node) -> dict[str, Any]:
        """Return the options of a redis-py connection. RESP2, so that replies look the same on every server."""
        place = {"host": node.host, "port": node.port} if node.port else {"path": node.host}
        options = self.options
        if self.service and node in self.nodes:  # a Sentinel has no databases, and its own users
            left = {"db"} if self.sentinel_auth else {"db", "username", "password"}
            options = {name: value for name, value in options.items() if name not in left}
        return {
            **place,
            **options,
            "retry_on_timeout": False,
            "retry_on_error": [],
            "health_check_interval": 0,
            "socket_connect_timeout": self.patience_seconds,
            "protocol": 2,
            "client_name": "semel",
        }


class RedisThreads:
    """The connections of one process's threads."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._pools: dict[Node, ConnectionPool[Any]] = {}

    def exchange(self, wanted: NodeExchange, deadline: Deadline) -> Replies:
        """Send one exchange and wait; return its replies, or the error that it ended with."""
        deadline = deadline.share(wanted.ways)
        pool = self._pools.get(wanted.node)
        if pool is None:
            pool = self._pools.setdefault(
                wanted.node, ConnectionPool(lambda until: self._open(wanted.node, until), self._server.connections_max)
            )
        try:
            connection, was_idle = pool.take(deadline)
        except StoreError as error:
            return error
        replies: Replies
        try:
            replies = self._check_connected(connection, wanted.node, was_idle, deadline)
            if not isinstance(replies, StoreError):
                replies = _execute(connection, wanted, deadline)
        except BaseException:
            connection.disconnect()
            pool.forget()
            raise
        if isinstance(replies, StoreError) or connection._sock is None:
            connection.disconnect()
            pool.forget()
            _close_all(pool)
        else:
            pool.give(connection)
        return replies

    def _open(self, node: Node, deadline: Deadline) -> Any:
        kind: Any = UnixDomainSocketConnection if not node.port else SSLConnection if self._server.tls else Connection
        settings = self._server.settings(node)
        connection = kind(**settings, retry=Retry(NoBackoff(), NO_RETRIES))
        _connect(connection, node, deadline)
        return connection

    def _check_connected(self, connection: Any, node: Node, was_idle: bool, deadline: Deadline) -> Replies:
        """Make sure that the server has not closed the connection meanwhile."""
        if not was_idle:
            return []
        try:
            if not connection.can_read(0):
                return []
        except (redis.RedisError, OSError):
            pass  # it is closed; a new one is opened
        connection.disconnect()
        try:
            _connect(connection, node, deadline)
        except StoreError as error:
            return error
        return []

    def close(self) -> None:
        """Close idle connections."""
        for pool in self._pools.values():
            _close_all(pool)


def _connect(connection: Any, node: Node, deadline: Deadline) -> None:
    connection.socket_connect_timeout = connection.socket_timeout = deadline.before_sending()
    try:
        connection.connect()
    except (redis.RedisError, OSError) as error:
        connection.disconnect()
        raise cannot_connect(node, error) from error


def _execute(connection: Any, wanted: NodeExchange, deadline: Deadline) -> Replies:
    replies: list[Any] = []
    taken_over = False
    try:
        connection._sock.settimeout(deadline.for_answer())
        connection.send_packed_command([pack(wanted.commands)], check_health=False)
        for _ in wanted.commands:
            connection._sock.settimeout(deadline.for_answer())
            try:
                replies.append(connection.read_response())
            except redis.ResponseError as error:
                refused = error_reply(error)
                replies.append(refused)
                taken_over = taken_over or refused.code in TAKEN_OVER
    except (redis.RedisError, OSError) as error:
        return judge_lost(wanted, replies, error)
    if taken_over:  # its name may lead to another server by now; this one may live on, and would keep the traffic
        connection.disconnect()
    return replies


def _close_all(pool: ConnectionPool[Any]) -> None:
    for connection in pool.forget_idle():
        connection.disconnect()


class RedisLoop:
    """The connections of one event loop."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._pools: dict[Node, AsyncConnectionPool[Any]] = {}
        self.tasks: set[asyncio.Task[Any]] = set()

    async def exchange(self, wanted: NodeExchange, deadline: Deadline) -> Replies:
        """As :meth:`RedisThreads.exchange`."""
        if wanted.ways != 1:
            deadline = deadline.share(wanted.ways)
        pool = self._pools.get(wanted.node)
        if pool is None:
            pool = self._pools[wanted.node] = AsyncConnectionPool(
                lambda until: self._open(wanted.node, until), self._server.connections_max
            )
        try:
            connection, was_idle = (pool.idle.pop(), True) if pool.idle else await pool.take(deadline)
        except StoreError as error:
            return error
        replies: Replies = []
        try:
            if was_idle and not await _is_quiet(connection):
                replies = await self._reconnect(connection, wanted.node, deadline)
            if not isinstance(replies, StoreError):
                replies = await _execute_async(connection, wanted, deadline)
        except BaseException:
            await connection.disconnect(nowait=True)
            pool.forget()
            raise
        if isinstance(replies, StoreError) or not connection.is_connected:
            await connection.disconnect(nowait=True)
            pool.forget()
            await _close_all_async(pool)
        else:
            pool.give(connection)
        return replies

    async def _open(self, node: Node, deadline: Deadline) -> Any:
        from redis.asyncio.retry import Retry as AsyncRetry

        kind: Any = aio.Connection
        if not node.port or self._server.tls:
            kind = aio.SSLConnection if node.port else aio.UnixDomainSocketConnection
        settings = self._server.settings(node)
        connection = kind(**settings, socket_timeout=None, retry=AsyncRetry(NoBackoff(), NO_RETRIES))
        await self._connect(connection, node, deadline)
        return connection

    async def _connect(self, connection: Any, node: Node, deadline: Deadline) -> None:
        try:
            async with asyncio.timeout(deadline.before_sending()):
                await connection.connect()
        except (redis.RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            raise cannot_connect(node, error) from error
        connection.semel_reader = new_reader(connection._parser.parse_error, redis.InvalidResponse)

    async def _reconnect(self, connection: Any, node: Node, deadline: Deadline) -> Replies:
        await connection.disconnect(nowait=True)
        try:
            await self._connect(connection, node, deadline)
        except StoreError as error:
            return error
        return []

    async def close(self) -> None:
        """Wait for running calls, then close idle connections."""
        while self.tasks:
            await asyncio.wait(set(self.tasks))
        for pool in self._pools.values():
            await _close_all_async(pool)

    def drop_idle(self) -> None:
        """Drop idle connections of a closed loop, on which nothing can be awaited."""
        for pool in self._pools.values():
            for connection in pool.forget_idle():
                drop(connection)


def drop(connection: Any) -> None:
    """Close a connection of a closed loop."""
    writer = connection._writer
    connection._reader = connection._writer = None  # redis-py would close them again, on the closed loop
    if writer is not None:
        cut(writer.transport)


async def _is_quiet(connection: Any) -> bool:
    """Whether an idle connection is still open, and has received no unexpected data."""
    reader, stream = connection.semel_reader, connection._reader
    if stream is None or stream.exception() is not None:
        return False
    if reader is not None:
        return not (stream._buffer or stream.at_eof() or reader.has_data())
    try:
        # Its name before redis-py 8.
        readable = getattr(connection, "can_read", None) or connection.can_read_destructive
        return not await readable()
    except (redis.RedisError, OSError):
        return False


async def _execute_async(connection: Any, wanted: NodeExchange, deadline: Deadline) -> Replies:
    """Send, and read as many replies: by hiredis as they arrive, since redis-py takes a coroutine for each."""
    reader = connection.semel_reader
    if reader is None:
        return await _execute_by_redis_py(connection, wanted, deadline)
    replies: list[Any] = []
    taken_over, missing, stream = False, len(wanted.commands), connection._reader
    giving_up = asyncio.get_running_loop().call_later(deadline.for_answer(), _give_up, stream)
    try:
        connection._writer.write(pack(wanted.commands))
        while missing:
            reply = reader.gets()
            if reply is NOT_YET:
                data = await stream.read(READ_BYTES)
                if not data:
                    raise redis.ConnectionError("the server has closed the connection")
                reader.feed(data)
                continue
            missing -= 1
            if isinstance(reply, redis.RedisError):
                if not isinstance(reply, (redis.ResponseError, *REFUSALS)):
                    raise reply
                taken_over = taken_over or isinstance(reply, REFUSALS)
                reply = error_reply(reply)
                taken_over = taken_over or reply.code in TAKEN_OVER
            replies.append(reply)
    except (redis.RedisError, OSError) as error:  # a TimeoutError is an OSError
        await connection.disconnect(nowait=True)  # even if all that was sent was refused: replies may still come
        return judge_lost(wanted, replies, error)
    finally:
        giving_up.cancel()
    if taken_over:  # as in ``_execute``
        await connection.disconnect(nowait=True)
    return replies


def _give_up(stream: asyncio.StreamReader) -> None:
    stream.set_exception(TimeoutError())


async def _execute_by_redis_py(connection: Any, wanted: NodeExchange, deadline: Deadline) -> Replies:
    """Do the same without hiredis."""
    replies: list[Any] = []
    taken_over = False
    try:
        async with asyncio.timeout(deadline.for_answer()):
            await connection.send_packed_command([pack(wanted.commands)], check_health=False)
            for _ in wanted.commands:
                try:
                    replies.append(await connection.read_response())
                except redis.ResponseError as error:
                    refused = error_reply(error)
                    replies.append(refused)
                    taken_over = taken_over or refused.code in TAKEN_OVER
    except (redis.RedisError, OSError) as error:
        return judge_lost(wanted, replies, error)
    if taken_over:  # as in ``_execute``
        await connection.disconnect(nowait=True)
    return replies


async def _close_all_async(pool: AsyncConnectionPool[Any]) -> None:
    for connection in pool.forget_idle():
        with suppress(redis.RedisError, OSError):  # it is gone either way
            await connection.disconnect()
