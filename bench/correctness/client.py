"""One request, byte for byte as a case wants it, and what came of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import h11

from bench.correctness.handlers import ORDERS

PATIENCE_SECONDS: Final = 20.0  # the longest that a subject makes a duplicate wait by default is 15
_CHUNK: Final = 65536


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. ``kind`` is its content type."""

    status: int
    kind: bytes
    body: bytes

    @property
    def ok(self) -> bool:
        """Whether it is 2xx."""
        return 200 <= self.status <= 299

    @property
    def refuses(self) -> bool:
        """Whether it is 4xx, or a 503 that says so: the server did not serve it, and said so in order."""
        return 400 <= self.status <= 499 or self.status == 503


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer: ``hung`` where the time ran out, else the connection was closed."""

    hung: bool


Reply = Answer | Silence


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request of a case. ``keys`` are the values of its Idempotency-Key lines, one line each."""

    mark: str
    keys: tuple[bytes, ...]
    body: bytes = b'{"item":"book","count":1}'
    user: str = "alice"
    reply: str = "json"
    gate: str = "none"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return all lines of this header."""
        return [
            (b"host", b"127.0.0.1"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(self.body)).encode()),
            (b"x-user", self.user.encode()),
            (b"x-mark", self.mark.encode()),
            (b"x-reply", self.reply.encode()),
            (b"x-gate", self.gate.encode()),
            *((b"idempotency-key", key) for key in self.keys),
        ]


async def send(port: int, call: Call, patience: float = PATIENCE_SECONDS) -> Reply:
    """Send one call on its own connection and wait for its answer."""
    try:
        async with asyncio.timeout(patience):
            return await _exchange(port, call)
    except TimeoutError:
        return Silence(hung=True)
    except (OSError, h11.RemoteProtocolError):
        return Silence(hung=False)


async def _exchange(port: int, call: Call) -> Reply:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    machine = h11.Connection(h11.CLIENT)
    try:
        writer.write(_request(machine, call))
        # Not drained before reading: a server may refuse a large body before it has read it.
        head: h11.Response | None = None
        body = bytearray()
        while True:
            event = machine.next_event()
            if event is h11.NEED_DATA:
                machine.receive_data(await reader.read(_CHUNK))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                kind = dict(head.headers).get(b"content-type", b"")
                return Answer(head.status_code, kind, bytes(body))
            elif isinstance(event, h11.ConnectionClosed):
                return Silence(hung=False)
    finally:
        writer.transport.abort()


def _request(machine: h11.Connection, call: Call) -> bytes:
    parts = (
        machine.send(h11.Request(method="POST", target=ORDERS, headers=call.headers())),
        machine.send(h11.Data(data=call.body)),
        machine.send(h11.EndOfMessage()),
    )
    return b"".join(part for part in parts if part)
