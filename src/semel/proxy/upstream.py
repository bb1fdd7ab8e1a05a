"""The ASGI application that passes requests on to an upstream, byte by byte and one time only.

What the upstream's failures mean is decided here: a connection that was never made proves that nothing happened; after
the first byte has left nothing is proven. Commands have a new connection each, so that an idle connection that the
upstream closes is never taken for one that can carry a command.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import httpcore

from semel.engine.permit import Permit
from semel.errors import NothingHappened
from semel.http.asgi.call import Message, Receive, Scope, Send
from semel.proxy.configuration import CONNECT_SECONDS, KEYED, TIMEOUT_SECONDS, Origin

Pairs = list[tuple[bytes, bytes]]

IDLE_SECONDS: Final = 300.0  # without a byte, of an answer that passes through unprotected
DOWNSTREAM_KEY: Final = "upstream"  # the name of the call that Semel-Downstream-Key is derived for
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
_NOT_SENT: Final = (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout, httpcore.UnsupportedProtocol)
_BROKEN: Final = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)
_FORWARDED: Final = frozenset({b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"})


class NotSent(NothingHappened):
    """The upstream could not be reached: it has not seen the command."""


class Cut(Exception):
    """The upstream's answer broke off after its head was passed on."""


class ClientLeft(Exception):
    """The client of a request that passes through has gone before the end of its body."""


class Upstream:
    """An ASGI application that passes every request on to ``origin``.

    Parameters: ``timeouts`` in seconds for each operation, by its name; an answer that is not complete by then leaves
    the outcome in doubt. ``idle_seconds`` without a byte end an answer that passes through.
    """

    def __init__(self, origin: Origin, timeouts: Mapping[str, float], *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._origin = origin
        self._timeouts = timeouts
        self._idle_seconds = idle_seconds
        self._shared = httpcore.AsyncConnectionPool(max_connections=1000, max_keepalive_connections=100)
        self._single = httpcore.AsyncConnectionPool(max_connections=1000, max_keepalive_connections=0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, as ASGI says."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            permit: Permit | None = scope.get("semel.permit")
            await (self._pass(scope, receive, send) if permit is None else self._run(permit, scope, receive, send))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._shared.aclose()
        await self._single.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _run(self, permit: Permit, scope: Scope, receive: Receive, send: Send) -> None:
        """A command that was granted: once, within its time."""
        seconds = self._timeouts.get(permit.claim.scope.operation, TIMEOUT_SECONDS)
        exchange = _Passing(send)
        try:
            async with asyncio.timeout(seconds + CONNECT_SECONDS):
                await exchange.run(self._single, self._request(scope, receive, permit, seconds))
        except _NOT_SENT as error:
            await exchange.fail(502, "The upstream cannot be reached. Nothing was done. Retry with the same key.", True)
            raise NotSent("the upstream cannot be reached") from error
        except (TimeoutError, httpcore.TimeoutException) as error:
            await exchange.fail(504, "The upstream did not answer in time. Keep the key; query the operation.")
            if exchange.started:
                raise Cut("the upstream's answer did not end in time") from error
        except _BROKEN as error:
            await exchange.fail(502, "The upstream's answer broke off. Keep the key; query the operation.")
            if exchange.started:
                raise Cut("the upstream's answer broke off") from error

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Any other request: streamed both ways, until the answer has ended or the client has gone."""
        exchange = _Passing(send)
        request = self._request(scope, receive, None, self._idle_seconds)
        pool = self._shared if request.method in _READS else self._single
        keyed = KEYED in scope  # the upstream recognises a repetition by its key
        advice = " Retry with the same key." if keyed else ""
        forward = asyncio.create_task(exchange.run(pool, request))
        gone = asyncio.create_task(request.client_gone())
        try:
            await asyncio.wait({forward, gone}, return_when=asyncio.FIRST_COMPLETED)
            if forward.done():
                forward.result()
        except ClientLeft:
            return  # the connection to the upstream is closed in the middle of the body, as the client's was
        except _NOT_SENT:
            await exchange.fail(502, f"The upstream cannot be reached.{advice}", True)
        except httpcore.TimeoutException as error:
            await exchange.fail(504, f"The upstream did not answer in time.{advice}", keyed)
            if exchange.started:
                raise Cut("the upstream's answer did not end in time") from error
        except _BROKEN as error:
            await exchange.fail(502, f"The upstream's answer broke off.{advice}", keyed)
            if exchange.started:
                raise Cut("the upstream's answer broke off") from error
        finally:
            for task in (forward, gone):
                task.cancel()
            await asyncio.gather(forward, gone, return_exceptions=True)

    def _request(self, scope: Scope, receive: Receive, permit: Permit | None, seconds: float) -> _Request:
        origin, query = self._origin, scope.get("query_string", b"")
        target = (scope.get("raw_path") or scope["path"].encode()) + (b"?" + query if query else b"")
        url = httpcore.URL(scheme=origin.scheme, host=origin.host, port=origin.port, target=target)
        headers = forwarded(scope, origin.authority)
        if permit is not None:
            headers += [
                (b"Semel-Operation", permit.operation_id.encode()),
                (b"Semel-Attempt", b"%d" % permit.attempt),
                (b"Semel-Downstream-Key", permit.key_for(DOWNSTREAM_KEY).encode()),
            ]
        return _Request(scope["method"], url, headers, receive, seconds)


def forwarded(scope: Scope, authority: str) -> Pairs:
    """The headers that an upstream gets of a request: without those of one connection, and of Semel's own none.

    Headers with an underscore are dropped where they would read as one of Semel's: CGI-like upstreams take both alike.
    """
    headers: Pairs = scope["headers"]
    named = {each.strip().lower() for name, value in headers if name == b"connection" for each in value.split(b",")}
    dropped = (_HOP_BY_HOP | _FORWARDED | {b"host", b"expect"} | named) - {b"content-length"}
    kept = [
        (name, value)
        for name, value in headers
        if name not in dropped and not name.replace(b"_", b"-").startswith(b"semel-")
    ]
    before = [value for name, value in headers if name == b"x-forwarded-for"]
    client = scope.get("client")
    addresses = [*before, *([client[0].encode()] if client else [])]
    host = next((value for name, value in headers if name == b"host"), b"")
    kept.insert(0, (b"Host", authority.encode()))
    if any(name == b"transfer-encoding" for name, _ in headers):
        kept.append((b"Transfer-Encoding", b"chunked"))
    if addresses:
        kept.append((b"X-Forwarded-For", b", ".join(addresses)))
    kept += [(b"X-Forwarded-Host", host), (b"X-Forwarded-Proto", scope.get("scheme", "http").encode())]
    return kept


class _Request:
    """One request on its way: its head, and its body as it arrives."""

    def __init__(self, method: str, url: httpcore.URL, headers: Pairs, receive: Receive, seconds: float) -> None:
        self.method = method
        self.url = url
        self.headers = headers
        self.extensions = {"timeout": {"connect": CONNECT_SECONDS, "pool": CONNECT_SECONDS, "read": seconds}}
        self._receive = receive
        self._read = asyncio.Event()
        names = {name.lower() for name, _ in headers}
        self.has_body = bool(names & {b"content-length", b"transfer-encoding"})
        if not self.has_body:
            self._read.set()

    async def body(self) -> AsyncIterator[bytes]:
        """The pieces of the body. Raises ClientLeft where the client goes away before its end."""
        more = self.has_body
        while more:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientLeft("the client went away before the end of its body")
            more = message.get("more_body", False)
            if message.get("body"):
                yield message["body"]
        self._read.set()

    async def client_gone(self) -> None:
        """Returns once the client has gone, after its body was read."""
        await self._read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


class _Passing:
    """One answer on its way back. ``started`` turns true with its head."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def run(self, pool: httpcore.AsyncConnectionPool, request: _Request) -> None:
        async with pool.stream(
            request.method,
            request.url,
            headers=request.headers,
            content=request.body() if request.has_body else None,
            extensions=request.extensions,
        ) as response:
            await self._start(response.status, answered(response.headers))
            async for piece in response.aiter_stream():
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, headers: Pairs) -> None:
        self.started = True
        start: Message = {"type": "http.response.start", "status": status, "headers": headers}
        await self._send(start)

    async def fail(self, status: int, detail: str, retryable: bool = False) -> None:
        """Answer in the upstream's place, unless it has begun to answer."""
        if self.started:
            return
        status, headers, body = failure(status, detail, retryable=retryable)
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def answered(headers: Any) -> Pairs:
    """The headers of an upstream's answer that go on: without those of its connection, and with lower-case names."""
    lower = [(name.lower(), value) for name, value in headers]
    named = {each.strip().lower() for name, value in lower if name == b"connection" for each in value.split(b",")}
    dropped = (_HOP_BY_HOP | named) - {b"content-length"}
    return [pair for pair in lower if pair[0] not in dropped]


def failure(status: int, detail: str, *, retryable: bool = False) -> tuple[int, Pairs, bytes]:
    """A problem document of the proxy's own: status, headers and body."""
    titles = {400: "Bad request", 501: "Not implemented", 502: "Bad gateway", 504: "Gateway timeout"}
    problem: dict[str, Any] = {"type": "about:blank", "title": titles[status], "status": status, "detail": detail}
    if status >= 502:
        problem |= {"retryable": retryable, "keyAction": "keep"}
    body = json.dumps(problem).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", b"%d" % len(body))]
    if retryable:
        headers.append((b"retry-after", b"1"))
    return status, headers, body
