"""The ASGI application that forwards requests to an upstream, byte by byte and only once.

This module decides what the upstream's failures mean: before the first byte of a command has left, nothing happened;
after it nothing is proven. Every request has its own connection: a command is never sent on an idle connection that the
upstream is closing, and surplus bytes of one answer never reach another client.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import httpcore

from semel.client.answers import links_without
from semel.core.model import Answer, Effects
from semel.engine.permit import Permit
from semel.errors import NothingHappened
from semel.http.asgi.call import Receive, Scope, Send, send_answer
from semel.http.headers import OPERATION_RELATION
from semel.http.problems import IN_PROGRESS, UPSTREAM_AWAY, UPSTREAM_BROKEN, UPSTREAM_SLOW, Kind, Problems
from semel.proxy.configuration import CONNECT_SECONDS, KEYED, TIMEOUT_SECONDS, UpstreamOrigin

Pairs = list[tuple[bytes, bytes]]

IDLE_SECONDS: Final = 300.0  # how long an unprotected request or answer may pause
DOWNSTREAM_KEY: Final = "upstream"  # the name from which Semel-Downstream-Key is derived
CONNECTIONS_MAX: Final = 1000
HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
_NOT_SENT: Final = (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout, httpcore.UnsupportedProtocol)
_LATE: Final = (TimeoutError, httpcore.TimeoutException)
_BROKEN: Final = (httpcore.NetworkError, httpcore.ProtocolError)
_FORWARDED: Final = frozenset({b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"})
_OF_THIS_HOST: Final = frozenset({b"location", b"content-location"})
_REPLAYED: Final = frozenset({b"idempotency-replayed", b"idempotent-replayed"})
_LIFETIME: Final = b"idempotency-key-lifetime"
_OF_ITS_KEY: Final = _REPLAYED | {_LIFETIME}  # Semel sets these itself on the answer to a command
_RETRY_DIGITS_MAX: Final = 5


class NotForwarded(NothingHappened):
    """The upstream could not be reached: it has not seen the command."""


class Cut(Exception):
    """The upstream's answer broke off after the proxy forwarded its head. ``answer`` is for a client that has no byte
    yet."""

    def __init__(self, answer: Answer) -> None:
        super().__init__("the upstream's answer did not come to its end")
        self.answer = answer


class StillRunning(Cut):
    """The upstream answered a retry with 409: it still works on an earlier attempt, and has refused nothing."""


class ClientLeft(Exception):
    """The client of an unprotected request disconnected before the end of its body."""


class Upstream:
    """An ASGI application that passes every request on to ``origin``.

    Parameters: ``timeouts`` in seconds for each operation, by its name; an answer that is not complete by then leaves
    the outcome in doubt. ``idle_seconds`` without a byte end an unprotected request. ``commands`` counts running
    commands by operation; ``passing`` holds the other requests.
    """

    def __init__(
        self, origin: UpstreamOrigin, timeouts: Mapping[str, float], *, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        self.commands: Counter[str] = Counter()
        self.passing: set[asyncio.Task[None]] = set()
        self.origin = origin
        self._timeouts = timeouts
        self._idle_seconds = idle_seconds
        self._problems = Problems()
        # Made once: otherwise each connection would read all CA certificates.
        tls = httpcore.default_ssl_context() if origin.scheme == "https" else None
        self._pool = httpcore.AsyncConnectionPool(tls, max_connections=CONNECTIONS_MAX, max_keepalive_connections=0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, as ASGI requires."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            permit: Permit | None = scope.get("semel.permit")
            await (self._pass(scope, receive, send) if permit is None else self._run(permit, scope, receive, send))

    async def reach(self) -> bool:
        """Return whether the upstream accepts a connection now; sends nothing on it."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(self.origin.host, self.origin.port)
        except OSError:  # TimeoutError too
            return False
        writer.close()
        return True

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._pool.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _run(self, permit: Permit, scope: Scope, receive: Receive, send: Send) -> None:
        """Run a granted command: once, within its time."""
        operation = permit.claim.scope.operation
        seconds = self._timeouts.get(operation, TIMEOUT_SECONDS)
        operations = (self._problems.operations_path or "").partition("{")[0]
        exchange = _Passing(send, seconds, permit, operations)
        request = self._request(scope, receive, permit, seconds)
        self.commands[operation] += 1
        try:
            async with asyncio.timeout(seconds):
                await exchange.run(self._pool, request)
                if exchange.busy_seconds is not None:
                    text = "The service still works on an earlier attempt. Retry with the same key."
                    raise StillRunning(self._answer(IN_PROGRESS, text, permit, exchange.busy_seconds))
        except (*_NOT_SENT, *_LATE, *_BROKEN) as error:
            if not request.sent:
                text = "Nothing was done. Retry with the same key."
                await exchange.fail(self._problem(UPSTREAM_AWAY, text, permit))
                raise NotForwarded("the upstream cannot be reached") from error
            kind = UPSTREAM_SLOW if isinstance(error, _LATE) else UPSTREAM_BROKEN
            if permit.effects is Effects.IDEMPOTENT:
                kind, text = kind._replace(retryable=True), "Retry with the same key: the service does it once."
            else:
                text = "It may have been done. Keep the key; query the operation."
            await exchange.fail(self._problem(kind, text, permit))
            if exchange.started:
                raise Cut(self._problem(kind, text, permit, linked=True)) from error
        finally:
            self.commands[operation] -= 1

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass any other request: stream both ways, until the answer has ended or the client has gone."""
        exchange = _Passing(send, self._idle_seconds)
        request = self._request(scope, receive, None, self._idle_seconds)
        keyed = KEYED in scope  # the upstream recognises a retry by its key
        advice = " Retry with the same key." if keyed else ""
        forward = asyncio.create_task(exchange.run(self._pool, request))
        gone = asyncio.create_task(request.client_gone())
        self.passing.add(forward)
        kind: Kind | None = None
        try:
            await asyncio.wait({forward, gone}, return_when=asyncio.FIRST_COMPLETED)
            if forward.cancelled():  # the proxy ends, and has waited long enough
                kind = UPSTREAM_BROKEN
            elif forward.done():
                forward.result()
        except ClientLeft:
            return  # close the upstream's connection in the middle of the body, as the client's was
        except _NOT_SENT:
            await exchange.fail(self._problem(UPSTREAM_AWAY, f"Nothing was done.{advice}"))
        except _LATE:
            kind = UPSTREAM_SLOW
        except _BROKEN:
            kind = UPSTREAM_BROKEN
        finally:
            self.passing.discard(forward)
            for task in (forward, gone):
                task.cancel()
            await asyncio.gather(forward, gone, return_exceptions=True)
        if kind is not None:
            text = f"It is not known what the service did.{advice}"
            answer = self._problem(kind._replace(retryable=keyed), text)
            await exchange.fail(answer)
            if exchange.started:
                raise Cut(answer)

    def _problem(self, kind: Kind, text: str, permit: Permit | None = None, *, linked: bool = False) -> Answer:
        """Answer in the upstream's place. ``linked`` if nothing else adds the link to the operation."""
        operation = None if permit is None else permit.execution_id
        answer = self._answer(kind, text, permit, 1 if kind.retryable else None)
        if operation is None or linked:
            return answer
        link = self._problems.operation_link(operation)
        return answer._replace(headers=tuple(pair for pair in answer.headers if pair != link))

    def _answer(self, kind: Kind, text: str, permit: Permit | None, retry_after: int | None) -> Answer:
        operation = None if permit is None else permit.execution_id
        return self._problems.answer(kind, text, operation_id=operation, retry_after=retry_after)

    def _request(self, scope: Scope, receive: Receive, permit: Permit | None, seconds: float) -> _Request:
        origin, query = self.origin, scope.get("query_string", b"")
        target = (scope.get("raw_path") or scope["path"].encode()) + (b"?" + query if query else b"")
        url = httpcore.URL(scheme=origin.scheme, host=origin.host, port=origin.port, target=target)
        headers = request_headers(scope, origin.authority)
        if permit is not None:
            headers += [
                (b"Semel-Operation", permit.operation_id.encode()),
                (b"Semel-Attempt", b"%d" % permit.attempt),
                (b"Semel-Downstream-Key", permit.key_for(DOWNSTREAM_KEY).encode()),
            ]
        return _Request(scope["method"], url, headers, receive, seconds, origin.url.encode())


def connection_headers(headers: Pairs) -> set[bytes]:
    """Return the headers that Connection names as hop-by-hop."""
    return {each.strip().lower() for name, value in headers if name == b"connection" for each in value.split(b",")}


def request_headers(scope: Scope, authority: str) -> Pairs:
    """Return the request headers for the upstream: without hop-by-hop headers, and without Semel's own.

    Headers with an underscore are dropped: CGI-like upstreams would confuse them with those with a hyphen.
    """
    headers: Pairs = scope["headers"]
    dropped = (HOP_BY_HOP | _FORWARDED | {b"host", b"expect"} | connection_headers(headers)) - {b"content-length"}
    kept = [
        (name, value)
        for name, value in headers
        if name not in dropped and b"_" not in name and not name.startswith(b"semel-")
    ]
    before = [value for name, value in headers if name == b"x-forwarded-for"]
    client = scope.get("client")
    addresses = [*before, *([client[0].encode()] if client else [])]
    host = next((value for name, value in headers if name == b"host"), b"")
    kept[:0] = [(b"Host", authority.encode()), (b"Connection", b"close")]
    if any(name == b"transfer-encoding" for name, _ in headers):
        kept.append((b"Transfer-Encoding", b"chunked"))
    if addresses:
        kept.append((b"X-Forwarded-For", b", ".join(addresses)))
    kept += [(b"X-Forwarded-Host", host), (b"X-Forwarded-Proto", scope.get("scheme", "http").encode())]
    return kept


class _Request:
    """One request in flight: its head, and its body as it arrives. ``sent`` becomes true before its first byte
    leaves."""

    def __init__(
        self, method: str, url: httpcore.URL, headers: Pairs, receive: Receive, seconds: float, origin: bytes
    ) -> None:
        self.method = method
        self.url = url
        self.headers = headers
        self.origin = origin
        self.sent = False
        connect = min(CONNECT_SECONDS, seconds)
        times = {"connect": connect, "pool": connect, "read": seconds, "write": seconds}
        self.extensions = {"timeout": times, "trace": self._trace}
        self._receive = receive
        self._seconds = seconds
        self._read = asyncio.Event()
        names = {name.lower() for name, _ in headers}
        self.has_body = bool(names & {b"content-length", b"transfer-encoding"})
        if not self.has_body:
            self._read.set()

    async def _trace(self, event: str, _: object) -> None:
        if event == "http11.send_request_headers.started":
            self.sent = True

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the body. Raises ClientLeft if the client disconnects before its end, TimeoutError if the
        next piece does not come in time.
        """
        more = self.has_body
        while more:
            async with asyncio.timeout(self._seconds):
                message = await self._receive()
            if message["type"] != "http.request":
                raise ClientLeft("the client went away before the end of its body")
            more = message.get("more_body", False)
            if message.get("body"):
                yield message["body"]
        self._read.set()

    async def client_gone(self) -> None:
        """Return once the client has gone, after its body was read."""
        await self._read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


class _Passing:
    """One answer on its way back.

    ``started`` turns true with its head; the client may take ``seconds`` for each piece. ``busy_seconds``: the answer
    was not forwarded, because the upstream still works on an earlier attempt of the command of ``permit``; ask it again
    after that time. ``operations`` is the path below which the proxy itself serves the status of commands.
    """

    def __init__(self, send: Send, seconds: float, permit: Permit | None = None, operations: str = "") -> None:
        self._send = send
        self._operations = operations
        self._seconds = seconds
        self._permit = permit
        self.started = False
        self.busy_seconds: int | None = None

    async def run(self, pool: httpcore.AsyncConnectionPool, request: _Request) -> None:
        async with pool.stream(
            request.method,
            request.url,
            headers=request.headers,
            content=request.body() if request.has_body else None,
            extensions=request.extensions,
        ) as response:
            if not 200 <= response.status <= 599:
                raise httpcore.RemoteProtocolError(f"{response.status} is not a status of an answer")
            head = answer_headers(response.headers, request.origin)
            if self._permit is not None:
                if _is_busy(self._permit, response.status, head):
                    self.busy_seconds = _retry_seconds(head)
                    return
                head = without_its_own(head, request.origin, self._operations)
            self.started = True
            await self._send({"type": "http.response.start", "status": response.status, "headers": head})
            async for piece in response.aiter_stream():
                async with asyncio.timeout(self._seconds):  # a client that reads nothing also holds the connection
                    await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, answer: Answer) -> None:
        """Answer in the upstream's place, unless it has begun to answer."""
        if not self.started:
            await send_answer(self._send, answer)


def answer_headers(headers: Any, origin: bytes) -> Pairs:
    """Return an answer's headers for the client: without hop-by-hop headers, and with lower-case names.

    A link to the upstream's own address becomes one to this host: a client that follows it must not bypass the proxy.
    """
    lower = [(name.lower(), value) for name, value in headers]
    dropped = HOP_BY_HOP | (connection_headers(lower) - {b"content-length"})
    if any(name == b"transfer-encoding" for name, _ in lower):
        dropped |= {b"content-length"}
    return [
        (name, _relative(value, origin) if name in _OF_THIS_HOST else value)
        for name, value in lower
        if name not in dropped
    ]


def without_its_own(headers: Pairs, origin: bytes, operations: str) -> Pairs:
    """Return an answer's headers without those about the upstream's own key and record.

    The proxy's record answers the client, so that the one link to a status leads there. The upstream's goes where the
    upstream uses Semel, too: it says how long it keeps a key, or the link leads below ``operations``, where the proxy
    answers. Another service's status is about something else, such as a job, and stays.

    >>> without_its_own([(b"link", b'</operations/1>; rel="status"'), (b"etag", b'"1"')], b"", "/operations/")
    [(b'etag', b'"1"')]
    """
    uses_semel = any(name == _LIFETIME for name, _ in headers)

    def is_dropped(target: str) -> bool:
        path = _relative(target.encode("latin-1"), origin).decode("latin-1")
        return uses_semel or (bool(operations) and path.startswith(operations))

    found: Pairs = []
    for name, value in headers:
        if name in _OF_ITS_KEY:
            continue
        links = value
        if name == b"link":
            links = links_without(value.decode("latin-1"), OPERATION_RELATION, is_dropped).encode("latin-1")
        if links or not value:
            found.append((name, links))
    return found


def _is_busy(permit: Permit, status: int, headers: Pairs) -> bool:
    """Return whether an upstream that deduplicates answers only that an earlier attempt still runs.

    A first attempt has no earlier one, and a marked answer is one that the upstream has stored.
    """
    if status != 409 or permit.effects is not Effects.IDEMPOTENT or permit.attempt == 1:
        return False
    return not any(name in _REPLAYED and value.strip().lower() == b"true" for name, value in headers)


def _retry_seconds(headers: Pairs) -> int:
    """Return the upstream's ``Retry-After`` in seconds; 1 if there is none."""
    value = next((value.strip() for name, value in headers if name == b"retry-after"), b"")
    return max(int(value), 1) if value.isdigit() and len(value) <= _RETRY_DIGITS_MAX else 1


def _relative(value: bytes, origin: bytes) -> bytes:
    """Return a link without the upstream's own origin.

    >>> _relative(b"http://127.0.0.1:3000/payments/1", b"http://127.0.0.1:3000")
    b'/payments/1'
    >>> _relative(b"http://127.0.0.1:3000//evil.example", b"http://127.0.0.1:3000")
    b'/.//evil.example'
    """
    if value[: len(origin)].lower() != origin.lower():
        return value
    rest = value[len(origin) :]
    if rest[:1] in (b"", b"?", b"#"):
        return b"/" + rest
    if rest[:2] in (b"//", b"/\\"):
        return b"/." + rest  # without the dot a client would read the first part of the path as a host
    return rest if rest[:1] == b"/" else value
