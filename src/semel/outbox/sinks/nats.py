"""NATS JetStream, through nats-py, which NATS itself maintains.

The subject is the event's topic, ``Nats-Msg-Id`` its id: a stream drops a repetition within its duplicate window.
The broker's operator makes the streams. A subject without a stream is refused if JetStream says so: a subject without
an answer may also mean that its stream has no leader, or that JetStream is not up yet.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import SplitResult

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from semel.errors import UrlError
from semel.outbox.event import Event
from semel.outbox.sinks.base import Refused, Reply, Unreached, ascii_headers, error_text
from semel.stores.backend import hide_password

ACK_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 2.0
CONNECT_SECONDS: Final = 5
_FRAME_BYTES: Final = 64  # around all headers
_AWAY: Final = frozenset({408, 500, 503})
_FULL: Final = 10002  # the account's limits are used up
_TOO_LARGE: Final = 10054  # message size exceeds maximum allowed
_NO_RESPONDERS: Final = "503"
_TOKEN: Final = re.compile(r"^(\w+://)[^:/@]+@")  # a user without a password is a token, and secret

Sent = asyncio.Future[Msg] | Refused | Unreached


class NatsSink:
    """Publishes to the streams of a NATS server or cluster.

    Parameters: ``servers`` URLs; ``prefix`` is put before each topic; ``stream`` requires that this stream takes them.
    """

    def __init__(self, servers: Sequence[str], *, prefix: str = "", stream: str | None = None) -> None:
        self.name = ",".join(hide_password(_TOKEN.sub(r"\1***@", server)) for server in servers)
        self.identity = f"{self.name} {prefix}"
        self._servers = list(servers)
        self._prefix = prefix
        self._stream = stream
        self._client: Client | None = None
        self._inbox = ""
        self._sent = 0
        self._waiting: dict[str, asyncio.Future[Msg]] = {}  # by the last part of their reply subject

    async def _connect(self) -> Client:
        if self._client is not None and self._client.is_connected:
            return self._client
        await self.close()
        self._client = client = await nats.connect(
            self._servers,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=CONNECT_SECONDS,
            error_cb=_unheard,
            name="semel-relay",
        )
        # The client's own publish_async ignores an error in an acknowledgement (nats-py 2.16).
        self._inbox = client.new_inbox()
        await client.subscribe(f"{self._inbox}.*", cb=self._receive)
        return client

    async def _receive(self, message: Msg) -> None:
        future = self._waiting.pop(message.subject.rpartition(".")[2], None)
        if future is not None and not future.done():
            future.set_result(message)

    async def publish(self, events: Sequence[Event]) -> list[Reply]:
        """Send all events, then wait for their acknowledgements."""
        try:
            client = await self._connect()
        except (NatsError, OSError, TimeoutError) as error:
            await self.close()
            return [Unreached(error_text(error))] * len(events)
        sent = [await self._send(client, event) for event in events]
        waiting = [each for each in sent if isinstance(each, asyncio.Future)]
        if waiting:
            await asyncio.wait(waiting, timeout=ACK_SECONDS)
            self._waiting.clear()
        unanswered = {event.topic for each, event in zip(sent, events, strict=True) if _nobody_answered(each)}
        found = dict(zip(unanswered, await asyncio.gather(*(self._look(client, t) for t in unanswered)), strict=True))
        return [
            found[event.topic] if _nobody_answered(each) else self._reply(each)
            for each, event in zip(sent, events, strict=True)
        ]

    async def _look(self, client: Client, topic: str) -> Reply:
        """Return the error for a subject without a responder."""
        subject = f"{self._prefix}{topic}"
        try:
            stream = await client.jetstream(timeout=LOOK_SECONDS).find_stream_name_by_subject(subject)
        except NotFoundError:
            return Refused(f"no stream takes the subject {subject}; make one on the broker")
        except (NatsError, OSError, TimeoutError) as error:
            why = error_text(error)
            return Unreached(
                f"no responder listens on the subject {subject}, nor JetStream what its streams are ({why})"
            )
        return Unreached(f"the stream {stream!r}, which takes the subject {subject}, does not answer")

    async def _send(self, client: Client, event: Event) -> Sent:
        headers = {**ascii_headers(event), "Nats-Msg-Id": event.id}
        if self._stream is not None:
            headers["Nats-Expected-Stream"] = self._stream
        size = len(event.payload) + sum(len(name) + len(value) + 4 for name, value in headers.items()) + _FRAME_BYTES
        if size > client.max_payload:
            return Refused(
                f"the event has {size} bytes with its headers, and the server takes {client.max_payload}", True
            )
        self._sent += 1
        token = str(self._sent)
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        try:
            await client.publish(
                f"{self._prefix}{event.topic}", event.payload, reply=f"{self._inbox}.{token}", headers=headers
            )
        except (NatsError, OSError) as error:
            return Unreached(error_text(error))
        return future

    def _reply(self, sent: Sent) -> Reply:
        if not isinstance(sent, asyncio.Future):
            return sent
        if not sent.done():
            return Unreached(f"no acknowledgement within {ACK_SECONDS:g} seconds")
        try:
            said: dict[str, Any] = json.loads(sent.result().data)
            error = said.get("error")
        except (ValueError, AttributeError):
            return Refused("something that is not a stream answered on this subject")
        if error is None:
            return None
        code, reason = error.get("code"), f"JetStream: {error.get('description')} ({error.get('err_code')})"
        if code in _AWAY or error.get("err_code") == _FULL:
            return Unreached(reason)
        return Refused(reason, error.get("err_code") == _TOO_LARGE)

    async def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        self._waiting.clear()
        if client is not None:
            with suppress(NatsError, OSError, TimeoutError):
                await client.close()


def _nobody_answered(sent: Sent) -> bool:
    if not isinstance(sent, asyncio.Future) or not sent.done():
        return False
    headers = sent.result().headers
    return headers is not None and headers.get("Status") == _NO_RESPONDERS


async def _unheard(error: Exception) -> None:
    """Ignore an error that nats-py reports here: ``publish`` gets it, too."""


def nats_sink(url: SplitResult, options: dict[str, str]) -> NatsSink:
    """The sink of ``nats://USER:PASSWORD@HOST:4222,HOST:4222?prefix=shop.&stream=EVENTS`` (``tls://`` with TLS)."""
    if not url.netloc:
        raise UrlError("nats:// needs a host, such as nats://127.0.0.1:4222")
    account, at, hosts = url.netloc.rpartition("@")
    servers = [f"{url.scheme}://{account}{at}{host}" for host in hosts.split(",")]
    return NatsSink(servers, prefix=options.pop("prefix", ""), stream=options.pop("stream", None))
