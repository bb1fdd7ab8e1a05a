"""Redis Streams (Redis or Valkey), through redis-py.

The topic is the stream's name. Redis has no duplicate window: an event that is sent again is a second entry with the
same ``semel-id``, which consumers must know.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import SplitResult, urlencode

from semel.errors import UrlError
from semel.outbox.event import Event
from semel.outbox.sinks.base import Refused, Reply, Unreached, message_headers
from semel.outbox.sinks.redis_streams import AppendLost, Streams
from semel.stores.backend import hide_password


class RedisSink:
    """Appends to a server's streams. Parameters as ``Streams``; ``prefix`` is put before each topic."""

    def __init__(self, url: str, *, prefix: str = "", maxlen: int | None = None, create: bool = True) -> None:
        self.name = hide_password(url)
        self.identity = f"{self.name} {prefix}"
        self._streams = Streams(url, maxlen=maxlen, create=create)
        self._prefix = prefix

    async def publish(self, events: Sequence[Event]) -> list[Reply]:
        """Add all events in one round trip."""
        entries = []
        for event in events:
            fields = {name.encode(): value.encode() for name, value in message_headers(event).items()}
            entries.append((f"{self._prefix}{event.topic}", {**fields, b"payload": event.payload}))
        try:
            said = await self._streams.append(entries)
        except AppendLost as error:
            return [Unreached(str(error))] * len(events)
        return [None if refused is None else Refused(str(refused)) for refused in said]

    async def close(self) -> None:
        """Close the connections."""
        await self._streams.close()


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
