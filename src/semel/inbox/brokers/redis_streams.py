"""Redis Streams (Redis or Valkey), through the application's redis-py client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from semel.errors import ConfigurationError
from semel.extras import install_command
from semel.inbox.brokers.delivery import EVENT_ID, Deliveries, Handler, find_id, text_of
from semel.inbox.run import AsyncInbox
from semel.workers.trouble import Trouble

try:
    from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
except ModuleNotFoundError as missing:
    raise ConfigurationError(f"an inbox on Redis needs redis-py; install it: {install_command('redis')}") from missing

SOCKET_SECONDS: Final = 5.0  # how long redis-py 8 waits for an answer, unless its user says otherwise
_NO_GROUP: Final = "NOGROUP"
_WRONG_KIND: Final = "WRONGTYPE"
_LOG: Final = logging.getLogger("semel.consumers")

Entry = tuple[bytes, Mapping[bytes, bytes]]
"""An entry's id and fields; texts if the client decodes them."""


class RedisStreamConsumer:
    """Handles each entry of a stream once, as one member of a consumer group.

    Parameters: ``client`` a ``redis.asyncio.Redis``; ``stream``, ``group`` (an operator creates it) and ``name`` of
    this member; ``idle_seconds`` after which an unacknowledged entry is taken over, by another member or the same:
    longer than a handler takes. ``delivery`` is the pair of entry id and fields, as the client reads them.
    """

    def __init__(
        self,
        inbox: AsyncInbox,
        handler: Handler,
        client: Any,
        *,
        stream: str,
        group: str,
        name: str,
        idle_seconds: float = 60.0,
        id_of: Callable[[Entry], str] | None = None,
        failed: Callable[[str, Exception], object] | None = None,
    ) -> None:
        self._deliveries = Deliveries(inbox, handler, failed)
        self._client = client
        self._stream = stream
        self._group = group
        self._name = name
        self._idle_ms = round(idle_seconds * 1000)
        self._id_of = id_of if id_of is not None else self._message_id

    async def turn(self, *, batch: int = 10, wait_seconds: float = 5.0) -> int:
        """Handle abandoned entries, then new ones; returns their number.

        Parameters: ``batch`` at most this many of each; ``wait_seconds`` to wait for the first new one, but at most
        half of the client's socket timeout.

        Raises the client's own errors.
        """
        _, claimed, *_ = await self._client.xautoclaim(
            self._stream, self._group, self._name, self._idle_ms, start_id="0-0", count=batch
        )
        left = [entry for entry in claimed if entry[0] is not None]  # Redis 6.2 returns no fields of a deleted entry
        for entry in left:
            await self._take(entry, await self._count_deliveries(entry[0]))
        wait_ms = 1 if left else max(1, round(min(wait_seconds, _wait_seconds_max(self._client)) * 1000))
        said = await self._client.xreadgroup(self._group, self._name, {self._stream: ">"}, count=batch, block=wait_ms)
        fresh = [entry for _, entries in _pairs(said) for entry in entries]
        for entry in fresh:
            await self._take(entry, 1)
        return len(left) + len(fresh)

    async def serve(self) -> None:
        """Handle entries until cancelled. Waits for an unavailable server.

        Raises ConfigurationError if there is no such group, or the server refuses the client.
        """
        trouble = Trouble(f"the consumer of the stream {self._stream}")
        while True:
            try:
                await self.turn()
                trouble.over()
            except RedisError as error:
                if (wrong := self._find_wrong(error)) is not None:
                    raise ConfigurationError(wrong) from error
                if trouble.errors == 0:
                    _LOG.warning("the stream %s cannot be read (%s); it is tried again", self._stream, error)
                await asyncio.sleep(trouble.note_error(error, log=False))

    def _find_wrong(self, error: RedisError) -> str | None:
        """Return the problem that a person must fix; None if waiting may help."""
        if str(error).startswith(_NO_GROUP):
            return (
                f"the stream {self._stream!r} has no group {self._group!r}; create it: "
                f"XGROUP CREATE {self._stream} {self._group} 0 MKSTREAM"
            )
        if isinstance(error, (AuthenticationError, NoPermissionError)) or str(error).startswith(_WRONG_KIND):
            return f"Redis refuses to read the stream {self._stream!r}: {error}"
        return None

    async def _take(self, entry: Entry, deliveries: int) -> None:
        id, unnamed = find_id(self._id_of, entry, self._message_id)
        if await self._deliveries.take(id, entry, deliveries, unnamed):
            await self._client.xack(self._stream, self._group, entry[0])

    async def _count_deliveries(self, id: bytes | str) -> int:
        [*found] = await self._client.xpending_range(self._stream, self._group, min=id, max=id, count=1)
        return int(found[0]["times_delivered"]) if found else 1

    def _message_id(self, entry: Entry) -> str:
        fields: Mapping[Any, Any] = entry[1]
        given = fields.get(EVENT_ID.encode()) or fields.get(EVENT_ID)
        return _text(given) if given else f"{self._stream}:{_text(entry[0])}"


def _text(said: bytes | str) -> str:
    return text_of(said) if isinstance(said, bytes) else said


def _wait_seconds_max(client: Any) -> float:
    """Return how long a read may wait for an entry without a client timeout: an idle stream is not a dead server."""
    settings = getattr(getattr(client, "connection_pool", client), "connection_kwargs", {})
    limit = settings.get("socket_timeout", SOCKET_SECONDS)
    return float("inf") if limit is None else limit / 2


def _pairs(said: Any) -> list[tuple[Any, list[Entry]]]:
    """Parse the reply to XREADGROUP: a list of pairs, or a mapping of lists in the newer protocol."""
    if isinstance(said, dict):
        return [(name, [entry for part in parts for entry in part]) for name, parts in said.items()]
    return list(said or ())
