"""A server and a client in one for Starlette applications: it never says that the client left while it is there."""

from __future__ import annotations

import asyncio
import faulthandler
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.applications import Starlette

from semel.core.model import State
from semel.engine.async_engine import AsyncEngine
from semel.errors import ConfigurationError
from semel.http.caller import Caller
from tests.web.driving import KEY, Headers, Message, Response, response_of

SECONDS_MAX = 5.0  # a call that takes this long hangs


def caller_of(request: Any) -> Caller | None:
    """By the bearer token; None without one."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return Caller("acme", token) if scheme == "Bearer" and token else None


@dataclass
class Asked:
    """One request on its way: what was sent so far, and when the client leaves."""

    pieces: list[bytes]
    leaves: bool = False
    sent: list[Message] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self) -> Message:
        if self.pieces:
            piece = self.pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self.pieces) or self.leaves}
        if not self.leaves:
            await self.over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.over.set()


@asynccontextmanager
async def in_one_task(life: AbstractAsyncContextManager[Any]) -> AsyncIterator[None]:
    """Enter and leave a lifespan in one task, even if different tasks enter and leave this."""
    over, begun = asyncio.Event(), asyncio.Event()

    async def live() -> None:
        async with life:
            begun.set()
            await over.wait()

    task = asyncio.create_task(live())
    first = asyncio.ensure_future(begun.wait())
    await asyncio.wait((task, first), return_when=asyncio.FIRST_COMPLETED)
    first.cancel()
    if not task.done():
        yield
    over.set()
    await task


def lifespan_of(app: Any) -> AbstractAsyncContextManager[Any]:
    """The life of a Starlette, Litestar or Quart application."""
    if isinstance(app, Starlette):
        return app.router.lifespan_context(app)
    return in_one_task(app.lifespan() if hasattr(app, "lifespan") else app.test_app())


class Web:
    """One application on its own loop. ``call`` answers 500 where the application raised before answering."""

    def __init__(self, app: Any, engine: AsyncEngine) -> None:
        self.app = app
        self.engine = engine
        self.raised: BaseException | None = None
        self.runner = asyncio.Runner()
        self._lifespan = lifespan_of(app)
        try:
            self.runner.run(self._lifespan.__aenter__())
        except BaseException:
            self.runner.close()
            raise

    def close(self) -> None:
        try:
            self.runner.run(self._lifespan.__aexit__(None, None, None))
        finally:
            self.runner.close()

    def call(self, path: str, body: Any = None, **how: Any) -> Response:
        """As ``ask``, to its end."""
        return self.runner.run(self.ask(path, body, **how))

    async def ask(
        self,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        query: str = "",
        key: str | None = KEY,
        headers: Headers | None = None,
        caller: str | None = "alice",
        leaves: bool = False,
    ) -> Response:
        """One request. ``body``: a JSON value, bytes, or the chunks of a chunked body; ``leaves`` before its end."""
        pieces, own = _encode(body)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": _head(own, headers or [], key, caller),
            "server": ("semel.example", 80),
            "client": ("127.0.0.1", 5000),
            "state": {},
        }
        asked = Asked(pieces, leaves)
        self.raised = None
        call = asyncio.ensure_future(self.app(scope, asked.receive, asked.send))
        try:
            done, _ = await asyncio.wait({call}, timeout=SECONDS_MAX)
        except asyncio.CancelledError:
            call.cancel()
            raise
        if not done:
            faulthandler.dump_traceback()
            pytest.exit(f"{method} {path} hangs", 1)
        self.raised = call.exception()
        return response_of(asked.sent) if asked.over.is_set() else Response(500, [], b"")

    def records(self) -> list[Any]:
        """All records of a memory store, oldest first."""
        return list(self.engine.backend.driver._table.rows())

    @property
    def states(self) -> list[str]:
        """The states of all records."""
        return [State(record.state).name for record in self.records()]


def _encode(body: Any) -> tuple[list[bytes], Headers]:
    if body is None:
        return [b""], [("Content-Length", "0")]
    if isinstance(body, bytes):
        return [body], [("Content-Length", str(len(body)))]
    if isinstance(body, list) and body and all(isinstance(piece, bytes) for piece in body):
        return list(body), [("Transfer-Encoding", "chunked")]
    text = json.dumps(body).encode()
    return [text], [("Content-Length", str(len(text))), ("Content-Type", "application/json")]


def _head(own: Headers, given: Headers, key: str | None, caller: str | None) -> list[tuple[bytes, bytes]]:
    names = {name.lower() for name, _ in given}
    lines = [*given, *(line for line in own if line[0].lower() not in names)]
    if key is not None:
        lines.append(("Idempotency-Key", key))
    if caller is not None:
        lines.append(("Authorization", f"Bearer {caller}"))
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in lines]


class Webs:
    """Makes applications, and closes them all."""

    def __init__(self) -> None:
        self._made: list[Web] = []

    def serve(self, app: Any, engine: AsyncEngine) -> Web:
        self._made.append(Web(app, engine))
        return self._made[-1]

    def close(self) -> None:
        for web in self._made:
            web.close()


def multipart(parts: Iterable[tuple[str, str | None, bytes]], boundary: str) -> tuple[bytes, Headers]:
    """A multipart form: (name, file name or None, content)."""
    out = b""
    for name, filename, content in parts:
        file = "" if filename is None else f'; filename="{filename}"'
        kind = "" if filename is None else "Content-Type: text/plain\r\n"
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n{kind}\r\n'
        out += head.encode() + content + b"\r\n"
    return out + f"--{boundary}--\r\n".encode(), [("Content-Type", f"multipart/form-data; boundary={boundary}")]


def refuses(declare: Callable[[], object]) -> str:
    """The message of the ConfigurationError with which a declaration is refused."""
    try:
        declare()
    except ConfigurationError as error:
        return str(error)
    raise AssertionError("it was not refused")


@asynccontextmanager
async def noting(notes: list[str], before: str, after: str) -> AsyncIterator[None]:
    """A lifespan that notes when it begins and ends."""
    notes.append(before)
    yield
    notes.append(after)


def both(web: Web, path: str, body: Any = None, **how: Any) -> Sequence[Response]:
    """The same request twice: the second must be a replay of the first, byte for byte."""
    first, second = web.call(path, body, **how), web.call(path, body, **how)
    assert (first.replayed, second.replayed) == (False, True), (first, second, web.raised)
    assert (second.status, second.body) == (first.status, first.body)
    return first, second
