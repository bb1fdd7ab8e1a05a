"""Redis Streams (Redis or Valkey), through redis-py.

The topic is the stream's name. Redis has no duplicate window: resending an event adds a second entry with the same
``semel-id``, which consumers must recognize.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import SplitResult, urlencode

import redis.asyncio as client
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ClusterDownError, OutOfMemoryError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import TimeoutError as Late

from semel.errors import UrlError
from semel.outbox.event import Event
from semel.outbox.sinks.base import Refused, Reply, Unreached, message_headers
from semel.stores.backend import hide_password

# With these errors a server refuses every entry: the event is not at fault.
_CLOSED: Final = (Lost, Late, ReadOnlyError, OutOfMemoryError, ClusterDownError)
_CLOSED_TEXTS: Final = ("MISCONF", "NOREPLICAS", "BUSY ")


class RedisSink:
    """Appends to a server's streams.

    Parameters: ``url`` redis:// or rediss://; ``prefix`` is put before each topic; ``maxlen`` about how many entries a
    stream keeps; None keeps all; ``create`` whether the first entry creates a missing stream.
    """

    def __init__(self, url: str, *, prefix: str = "", maxlen: int | None = None, create: bool = True) -> None:
        self.name = hide_password(url)
        self.identity = f"{self.name} {prefix}"
        self._client: Any = client.Redis.from_url(
            url, socket_timeout=5, socket_connect_timeout=5, retry=Retry(NoBackoff(), 0)
        )
        self._prefix = prefix
        self._maxlen = maxlen
        self._create = create

    async def publish(self, events: Sequence[Event]) -> list[Reply]:
        """Add all events in one round trip."""
        pipe = self._client.pipeline(transaction=False)
        streams = [f"{self._prefix}{event.topic}" for event in events]
        for stream, event in zip(streams, events, strict=True):
            fields = {name.encode(): value.encode() for name, value in message_headers(event).items()}
            fields[b"payload"] = event.payload
            pipe.xadd(stream, fields, maxlen=self._maxlen, approximate=True, nomkstream=not self._create)
        try:
            replies = await pipe.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            return [Unreached(_text(error))] * len(events)
        closed = next((reply for reply in replies if _is_closed(reply)), None)
        if closed is not None:
            await self.close()  # after a failover the name may lead to another server
            return [Unreached(_text(closed))] * len(events)
        return [_read_reply(stream, reply) for stream, reply in zip(streams, replies, strict=True)]

    async def close(self) -> None:
        """Close the connections; they reopen on use."""
        await self._client.aclose()


def _is_closed(reply: object) -> bool:
    return isinstance(reply, _CLOSED) or (isinstance(reply, ResponseError) and str(reply).startswith(_CLOSED_TEXTS))


def _read_reply(stream: str, reply: object) -> Reply:
    if isinstance(reply, RedisError):
        return Refused(_text(reply))
    return Refused(f"there is no stream {stream!r}; make it, or let the sink (?create=yes)") if reply is None else None


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def redis_sink(url: SplitResult, options: dict[str, str]) -> RedisSink:
    """The sink of ``redis://USER:PASSWORD@HOST:6379/0?prefix=shop:&maxlen=100000&create=yes`` (``rediss://``: TLS)."""
    maxlen, create = options.pop("maxlen", None), options.pop("create", "yes")
    if maxlen is not None and (not maxlen.isdecimal() or int(maxlen) < 1):
        raise UrlError(f"maxlen= is a whole number from 1; it is {maxlen!r}")
    if create not in ("yes", "no"):
        raise UrlError(f"create= is yes or no; it is {create!r}")
    theirs = {name: options.pop(name) for name in list(options) if name.startswith("ssl_")}
    return RedisSink(
        url._replace(query=urlencode(theirs)).geturl(),
        prefix=options.pop("prefix", ""),
        maxlen=None if maxlen is None else int(maxlen),
        create=create == "yes",
    )
