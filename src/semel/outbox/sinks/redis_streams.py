"""Append to Redis Streams, with only the parts of the client library that the sink needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import redis.asyncio as client
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ClusterDownError, OutOfMemoryError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import TimeoutError as Late

Fields = Mapping[bytes, bytes]


class AppendRefused(Exception):
    """The server answered this one with an error."""


class AppendLost(Exception):
    """The server did not answer, or takes no writes at all."""


# a server that answers so refuses every entry: the event is not at fault
_CLOSED: Final = (ReadOnlyError, OutOfMemoryError, ClusterDownError)
_CLOSED_TEXTS: Final = ("MISCONF", "NOREPLICAS", "BUSY ")


class Streams:
    """One server's streams.

    Parameters: ``url`` redis:// or rediss://; ``maxlen`` about how many entries a stream keeps; None keeps all;
    ``create`` whether a stream that does not exist is made by its first entry.
    """

    def __init__(self, url: str, *, maxlen: int | None, create: bool) -> None:
        self._client: Any = client.Redis.from_url(
            url, socket_timeout=5, socket_connect_timeout=5, retry=Retry(NoBackoff(), 0)
        )
        self._maxlen = maxlen
        self._create = create

    async def append(self, entries: Sequence[tuple[str, Fields]]) -> list[AppendRefused | None]:
        """Append an entry to each stream in one round trip; returns the server's reply for each.

        Raises AppendLost: it is open which of them are there.
        """
        pipe = self._client.pipeline(transaction=False)
        for stream, fields in entries:
            pipe.xadd(stream, fields, maxlen=self._maxlen, approximate=True, nomkstream=not self._create)
        try:
            replies = await pipe.execute(raise_on_error=False)
        except (Lost, Late, OSError) as error:
            raise AppendLost(f"{type(error).__name__}: {error}") from error
        except RedisError as error:
            raise AppendLost(f"{type(error).__name__}: {error}") from error
        try:
            return [_check_reply(stream, reply) for (stream, _), reply in zip(entries, replies, strict=True)]
        except AppendLost:
            await self.close()  # after a failover the name may lead to another server
            raise

    async def close(self) -> None:
        """Close the connections; they are opened again when they are needed."""
        await self._client.aclose()


def _check_reply(stream: str, reply: Any) -> AppendRefused | None:
    if isinstance(reply, (Lost, Late, *_CLOSED)) or (
        isinstance(reply, ResponseError) and str(reply).startswith(_CLOSED_TEXTS)
    ):
        raise AppendLost(f"{type(reply).__name__}: {reply}")
    if isinstance(reply, (ResponseError, RedisError)):
        return AppendRefused(f"{type(reply).__name__}: {reply}")
    return (
        AppendRefused(f"there is no stream {stream!r}; make it, or let the sink (?create=yes)")
        if reply is None
        else None
    )
