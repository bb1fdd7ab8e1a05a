"""NATS JetStream, through nats-py, which NATS itself maintains.

The subject is the event's topic, ``Nats-Msg-Id`` its id: a stream drops what comes again within its duplicate window.
Streams are made by whoever runs the broker; a subject that no stream takes is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import SplitResult

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NoStreamResponseError

from semel.engine.backend import shown_url
from semel.errors import UrlError
from semel.events import Event
from semel.worker.sinks.base import Refused, Reply, Unreached, message_headers, told

ACK_SECONDS: Final = 5.0
_HEADER_BYTES: Final = 64  # of framing, beside each name and value
_TOO_LARGE: Final = {10054}  # JetStream: message size exceeds maximum allowed
_AWAY: Final = {503, 408}


class NatsSink:
    """Publishes to the streams of a NATS server or cluster.

    Parameters: ``servers`` URLs; ``prefix`` stands before each topic; ``stream`` demands that this one takes them.
    """

    def __init__(self, servers: Sequence[str], *, prefix: str = "", stream: str | None = None) -> None:
        self.name = ",".join(shown_url(server) for server in servers)
        self._servers = list(servers)
        self._prefix = prefix
        self._stream = stream
        self._client: Client | None = None
        self._context: JetStreamContext | None = None

    async def _connected(self) -> tuple[Client, JetStreamContext]:
        client, context = self._client, self._context
        if client is not None and context is not None and client.is_connected:
            return client, context
        await self.close()
        client = await nats.connect(
            self._servers, allow_reconnect=False, connect_timeout=5, error_cb=_unheard, name="semel-relay"
        )
        self._client = client
        self._context = context = client.jetstream(publish_async_max_pending=100_000)
        return client, context

    async def publish(self, events: Sequence[Event]) -> list[Reply]:
        """All at once; then their acknowledgements."""
        try:
            client, context = await self._connected()
        except (NatsError, OSError, TimeoutError) as error:
            return [Unreached(told(error))] * len(events)
        sent = [await self._send(client, context, event) for event in events]
        waiting = [each for each in sent if isinstance(each, asyncio.Future)]
        if waiting:
            await asyncio.wait(waiting, timeout=ACK_SECONDS)
        return [self._reply(each, event) for each, event in zip(sent, events, strict=True)]

    async def _send(
        self, client: Client, context: JetStreamContext, event: Event
    ) -> asyncio.Future[Any] | Refused | Unreached:
        headers = {**message_headers(event), "Nats-Msg-Id": event.id}
        size = len(event.payload) + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())
        if size + _HEADER_BYTES > client.max_payload:
            return Refused(
                f"the event has {size} bytes with its headers, and the server takes {client.max_payload}", True
            )
        try:
            subject = f"{self._prefix}{event.topic}"
            future: asyncio.Future[Any] = await context.publish_async(
                subject, event.payload, headers=headers, stream=self._stream
            )
        except (NatsError, OSError) as error:
            return Unreached(told(error))
        return future

    def _reply(self, sent: asyncio.Future[Any] | Refused | Unreached, event: Event) -> Reply:
        if not isinstance(sent, asyncio.Future):
            return sent
        if not sent.done():
            sent.cancel()
            return Unreached(f"no acknowledgement within {ACK_SECONDS:g} seconds")
        if sent.cancelled():
            return Unreached("the connection was closed")
        error = sent.exception()
        if error is None:
            return None
        if isinstance(error, NoStreamResponseError):
            return Refused(f"no stream takes the subject {self._prefix}{event.topic}; make one on the broker")
        if isinstance(error, APIError) and error.code not in _AWAY:
            return Refused(f"JetStream: {error.description} ({error.err_code})", error.err_code in _TOO_LARGE)
        return Unreached(told(error))

    async def close(self) -> None:
        """Close the connection."""
        client, self._client, self._context = self._client, None, None
        if client is not None:
            with suppress(NatsError, OSError, TimeoutError):
                await client.close()


async def _unheard(error: Exception) -> None:
    """nats-py tells here what ``publish`` hears as well."""


def nats_sink(url: SplitResult, options: dict[str, str]) -> NatsSink:
    """The sink of ``nats://USER:PASSWORD@HOST:4222,HOST:4222?prefix=shop.&stream=EVENTS`` (``tls://`` with TLS)."""
    if not url.netloc:
        raise UrlError("nats:// needs a host, such as nats://127.0.0.1:4222")
    account, at, hosts = url.netloc.rpartition("@")
    servers = [f"{url.scheme}://{account}{at}{host}" for host in hosts.split(",")]
    return NatsSink(servers, prefix=options.pop("prefix", ""), stream=options.pop("stream", None))
