"""Redis Streams (Redis or Valkey), through a client of redis-py's that is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from semel.inbox.brokers.delivery import EVENT_ID, Deliveries, Handler, find_id, text_of
from semel.inbox.run import AsyncInbox

Entry = tuple[bytes, Mapping[bytes, bytes]]


class RedisStreamConsumer:
    """Handles each entry of a stream once, as one member of a consumer group.

    Parameters: ``client`` a ``redis.asyncio.Redis`` that decodes nothing; ``stream``, ``group`` (made by its
    operator) and ``name`` of this member; ``idle_seconds`` after which what a member has not acknowledged is taken
    over, by others or by itself: longer than a handler takes. ``delivery`` is the pair of entry id and fields.
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
        """Handle abandoned entries, then new ones; returns their number."""
        _, left, *_ = await self._client.xautoclaim(
            self._stream, self._group, self._name, self._idle_ms, start_id="0-0", count=batch
        )
        for entry in left:
            await self._take(entry, await self._count_deliveries(entry[0]))
        wait_ms = 1 if left else max(1, round(wait_seconds * 1000))
        said = await self._client.xreadgroup(self._group, self._name, {self._stream: ">"}, count=batch, block=wait_ms)
        fresh = [entry for _, entries in _pairs(said) for entry in entries]
        for entry in fresh:
            await self._take(entry, 1)
        return len(left) + len(fresh)

    async def serve(self) -> None:
        """Handle entries until cancelled."""
        while True:
            await self.turn()

    async def _take(self, entry: Entry, deliveries: int) -> None:
        id, unnamed = find_id(self._id_of, entry, self._message_id)
        if await self._deliveries.take(id, entry, deliveries, unnamed):
            await self._client.xack(self._stream, self._group, entry[0])

    async def _count_deliveries(self, id: bytes) -> int:
        [*found] = await self._client.xpending_range(self._stream, self._group, min=id, max=id, count=1)
        return int(found[0]["times_delivered"]) if found else 1

    def _message_id(self, entry: Entry) -> str:
        given = entry[1].get(EVENT_ID.encode())
        return text_of(given) if given else f"{self._stream}:{entry[0].decode()}"


def _pairs(said: Any) -> list[tuple[Any, list[Entry]]]:
    """The reply to XREADGROUP: a list of pairs, or a mapping of lists in the newer protocol."""
    if isinstance(said, dict):
        return [(name, [entry for part in parts for entry in part]) for name, parts in said.items()]
    return list(said or ())
