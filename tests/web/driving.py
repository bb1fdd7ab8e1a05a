"""A server and a client in one: drives either middleware by hand, so that one table of cases covers both."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from semel.engine.async_engine import AsyncEngine
from semel.engine.sync_engine import Engine
from semel.http.asgi.middleware import SemelMiddleware as AsgiMiddleware
from semel.http.caller import Caller, from_state
from semel.http.wsgi.middleware import SemelMiddleware as WsgiMiddleware
from semel.telemetry import Counting

Headers = list[tuple[str, str]]
Message = MutableMapping[str, Any]
ALICE = Caller("acme", "alice")
BOB = Caller("acme", "bob")
KEY = "8e03978e-40d5-43dd-bc93-6894a57f9324"
BODY = b'{"amount":1250}'


@dataclass
class Response:
    """What reached the client."""

    status: int
    headers: Headers
    body: bytes

    def header(self, name: str) -> str | None:
        found = [value for given, value in self.headers if given.lower() == name.lower()]
        assert len(found) <= 1, f"{name} is there {len(found)} times"
        return found[0] if found else None

    def link(self, relation: str = "status") -> str | None:
        """Return the target of the link of a relation."""
        links = [value for name, value in self.headers if name.lower() == "link"]
        found = [value for value in ", ".join(links).split(", ") if value.endswith(f'; rel="{relation}"')]
        assert len(found) <= 1, f"rel={relation} is there {len(found)} times"
        return found[0][1 : found[0].index(">")] if found else None

    @property
    def problem(self) -> dict[str, Any]:
        assert self.header("content-type") == "application/problem+json"
        assert self.header("cache-control") == "no-store"
        assert self.header("content-length") == str(len(self.body))
        document: dict[str, Any] = json.loads(self.body)
        assert document["status"] == self.status
        assert document["code"] == self.header("semel-code")
        assert str(document.get("retryAfter", "")) == (self.header("retry-after") or "")
        return document

    @property
    def code(self) -> str:
        code: str = self.problem["code"]
        return code

    @property
    def replayed(self) -> bool:
        return self.header("idempotency-replayed") == "true"


@dataclass
class Reply:
    """What the application answers; with ``error`` it raises after that."""

    status: int = 201
    headers: Headers = field(default_factory=lambda: [("Content-Type", "text/plain"), ("Location", "/payments/1")])
    chunks: Iterable[bytes] = (b"paid",)
    error: BaseException | None = None


@dataclass
class Seen:
    """One call of the application: the body it read and the permit it found."""

    body: bytes
    permit: Any


Handler = Callable[[Seen], Reply]


class Web(Protocol):
    """One protected application and its clients."""

    handler: Handler
    seen: list[Seen]
    counting: Counting
    is_observed: bool  # otherwise nothing is counted
    engine: Any

    def call(
        self,
        *,
        method: str = "POST",
        path: str = "/payments",
        query: str = "",
        key: str | None = KEY,
        headers: Headers = ...,
        body: bytes | Iterable[bytes] = BODY,
        caller: Caller | None = ALICE,
    ) -> Response: ...

    def records(self) -> list[Any]: ...

    def close(self) -> None: ...


def head(key: str | None, headers: Headers, pieces: list[bytes]) -> Headers:
    names = {name.lower() for name, _ in headers}
    given = list(headers)
    if "content-type" not in names:
        given.append(("Content-Type", "application/json"))
    if "content-length" not in names:
        given.append(("Content-Length", str(sum(map(len, pieces)))))
    return given if key is None else [*given, ("Idempotency-Key", key)]


class AsgiWeb:
    """The ASGI middleware around one handler, on its own loop."""

    is_observed = True

    def __init__(self, handler: Handler, **settings: Any) -> None:
        self.handler = handler
        self.seen: list[Seen] = []
        self.counting = Counting()
        self.runner = asyncio.Runner()
        options = {name: settings.pop(name) for name in ("sealer", "quota") if name in settings}
        observer = self.counting if self.is_observed else None
        self.engine = AsyncEngine.connect("memory://?persistence=none", observer=observer, **options)
        self.runner.run(self.engine.open())
        settings.setdefault("caller", from_state("user"))
        self.middleware = AsgiMiddleware(self.app, self.engine, **settings)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message["more_body"]:
                break
        seen = Seen(body, scope.get("semel.permit"))
        self.seen.append(seen)
        reply = self.handler(seen)
        if reply.status:
            headers = [(name.encode(), value.encode("latin-1")) for name, value in reply.headers]
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            for chunk in reply.chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        if reply.error is not None:
            raise reply.error

    def call(
        self,
        *,
        method: str = "POST",
        path: str = "/payments",
        query: str = "",
        key: str | None = KEY,
        headers: Headers | None = None,
        body: bytes | Iterable[bytes] = BODY,
        caller: Caller | None = ALICE,
    ) -> Response:
        pieces = [body] if isinstance(body, bytes) else list(body)
        scope = asgi_scope(method, path, query, head(key, headers or [], pieces), caller)
        return self.runner.run(asgi_call(self.middleware, scope, pieces))

    def records(self) -> list[Any]:
        return list(self.engine.backend.driver._table.rows())

    def close(self) -> None:
        self.runner.run(self.middleware.close())
        self.runner.run(self.engine.close())
        self.runner.close()


def asgi_scope(method: str, path: str, query: str, headers: Headers, caller: Caller | None) -> dict[str, Any]:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
        "state": {} if caller is None else {"user": caller},
    }


async def asgi_call(app: Callable[..., Awaitable[None]], scope: Any, pieces: list[bytes]) -> Response:
    left = list(pieces)
    sent: list[Message] = []

    async def receive() -> Message:
        if not left:
            return {"type": "http.disconnect"}
        piece = left.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(left)}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return response_of(sent)


def response_of(sent: list[Message]) -> Response:
    start, *rest = sent
    headers = [(name.decode(), value.decode("latin-1")) for name, value in start["headers"]]
    assert start["type"] == "http.response.start"
    assert not rest[-1].get("more_body")
    return Response(start["status"], headers, b"".join(message.get("body", b"") for message in rest))


class UnobservedWeb(AsgiWeb):
    """The same without an observer, as most applications are: no event is emitted, and replies are immediate."""

    is_observed = False


class WsgiWeb:
    """The WSGI middleware around one handler."""

    is_observed = True

    def __init__(self, handler: Handler, **settings: Any) -> None:
        self.handler = handler
        self.seen: list[Seen] = []
        self.counting = Counting()
        options = {name: settings.pop(name) for name in ("sealer", "quota") if name in settings}
        self.engine = Engine.connect("memory://?persistence=none", observer=self.counting, **options)
        self.engine.open()
        settings.setdefault("caller", from_state("user"))
        self.middleware = WsgiMiddleware(self.app, self.engine, **settings)

    def app(self, environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        seen = Seen(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0)), environ.get("semel.permit"))
        self.seen.append(seen)
        reply = self.handler(seen)
        if reply.status:
            start_response(f"{reply.status} Whatever", reply.headers)
            yield from reply.chunks
        if reply.error is not None:
            raise reply.error

    def call(
        self,
        *,
        method: str = "POST",
        path: str = "/payments",
        query: str = "",
        key: str | None = KEY,
        headers: Headers | None = None,
        body: bytes | Iterable[bytes] = BODY,
        caller: Caller | None = ALICE,
    ) -> Response:
        pieces = [body] if isinstance(body, bytes) else list(body)
        environ = wsgi_environ(method, path, query, head(key, headers or [], pieces), b"".join(pieces), caller)
        return wsgi_call(self.middleware, environ)

    def records(self) -> list[Any]:
        return list(self.engine.backend.driver._table.rows())

    def close(self) -> None:
        self.engine.close()


def wsgi_environ(
    method: str, path: str, query: str, headers: Headers, body: bytes, caller: Caller | None
) -> dict[str, Any]:
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path.encode().decode("latin-1"),
        "QUERY_STRING": query,
        "wsgi.input": io.BytesIO(body),
        "state": {} if caller is None else {"user": caller},
    }
    for name, value in headers:
        variable = name.upper().replace("-", "_")
        if variable not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            variable = f"HTTP_{variable}"
        # As servers do: several lines of one field become one value.
        environ[variable] = f"{environ[variable]},{value}" if variable in environ else value
    return environ


def wsgi_call(app: Callable[..., Iterable[bytes]], environ: Mapping[str, Any]) -> Response:
    heads: list[tuple[str, Headers]] = []
    written: list[bytes] = []

    def start_response(status: str, headers: Headers, exc_info: Any = None) -> Callable[[bytes], None]:
        heads.append((status, headers))
        return written.append

    pieces = app(environ, start_response)
    try:
        written.extend(pieces)
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
    status, headers = heads[-1]
    return Response(int(status[:3]), headers, b"".join(written))
