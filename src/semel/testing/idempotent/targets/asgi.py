"""An ASGI application as a target: driven by hand on one event loop, with its lifespan, without a server or sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import MutableMapping
from typing import Any, Final

from semel.check.discovery import CheckedOperation, discover
from semel.errors import SchemaError, SemelError
from semel.testing.idempotent.case import Request
from semel.testing.idempotent.reply import Reply
from semel.testing.idempotent.report import CannotRun
from semel.testing.idempotent.targets.target import ATTEMPT_SECONDS, Fate, encode_headers, name_of

Message = MutableMapping[str, Any]
MIGRATE: Final = "run `semel migrate --url ...` on the store of this test, or use the fixture semel_async_engine"


class AsgiTarget:
    """An ASGI application.

    Parameters: ``app``; ``key_header`` and ``replayed_header`` of its surface (read from it by default, if possible).
    """

    def __init__(self, app: Any, *, key_header: str = "", replayed_header: str = "") -> None:
        self.app = app
        self.name = name_of(app)
        self.found = discover(app)
        surface = next((each.surface for each in self.found.operations if each.surface is not None), None)
        self.key_header = key_header or (surface.key_header if surface else "Idempotency-Key")
        self.replayed_header = replayed_header or (surface.replayed_header if surface else "Idempotency-Replayed")
        self._state: dict[str, Any] = {}
        self._lifespan: _Lifespan | None = None

    def operation(self, request: Request) -> CheckedOperation | None:
        """Return the declared operation of a request."""
        return self.found.find(request.method, request.path.partition("?")[0])

    async def open(self) -> None:
        """Start the application. Raises CannotRun if its lifespan fails."""
        if self.found.mistakes:
            raise CannotRun(*self.found.mistakes[0])
        self._lifespan = _Lifespan(self.app, self._state)
        await self._lifespan.start()

    async def close(self) -> None:
        """Stop the application."""
        if self._lifespan is not None:
            await self._lifespan.stop()

    async def attempt(self, request: Request, key: str | None, fate: Fate) -> Reply:
        """Send one request."""
        exchange = _Exchange(request.body, leaves=fate is Fate.LEAVES)
        scope = self._scope(request, key)
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS) as limit:
                await self.app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            raise
        except TimeoutError as error:
            if limit.expired():
                raise _hangs(request) from None
            return exchange.reply(error, self.replayed_header)
        except BaseException as error:  # noqa: BLE001 -- whatever the application raises is what came
            return exchange.reply(error, self.replayed_header)
        return exchange.reply(None, self.replayed_header)

    def _scope(self, request: Request, key: str | None) -> dict[str, Any]:
        path, _, query = request.path.partition("?")
        headers = encode_headers(request.headers, key, self.key_header)
        if request.body and not any(name.lower() == "content-length" for name, _ in headers):
            headers.append(("Content-Length", str(len(request.body))))
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(b"host", b"testserver"), *((n.lower().encode(), v.encode("latin-1")) for n, v in headers)],
            "client": ("127.0.0.1", 50000),
            "server": ("testserver", 80),
            "state": self._state.copy(),
        }


def _hangs(request: Request) -> CannotRun:
    return CannotRun(
        f"{request.text()} did not answer within {ATTEMPT_SECONDS:g} seconds",
        "let the effects of a test answer at once: use a fake provider",
    )


class _Exchange:
    """One request and its answer, as ASGI messages."""

    def __init__(self, body: bytes, *, leaves: bool) -> None:
        self._body: bytes | None = body
        self._leaves = leaves
        self._status: int | None = None
        self._headers: tuple[tuple[str, str], ...] = ()
        self._pieces: list[bytes] = []
        self._ended = asyncio.Event()

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self._leaves:
            await self._ended.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._leaves:
            raise OSError("the client has gone")
        if message["type"] == "http.response.start":
            self._status = int(message["status"])
            self._headers = tuple(
                (bytes(name).decode("latin-1"), bytes(value).decode("latin-1"))
                for name, value in message.get("headers", ())
            )
        elif message["type"] == "http.response.body":
            self._pieces.append(bytes(message.get("body", b"")))
            if not message.get("more_body", False):
                self._ended.set()

    def reply(self, error: BaseException | None, replayed_header: str) -> Reply:
        self._ended.set()
        if self._leaves:
            return Reply(lost=True)
        if error is not None and (self._status is None or isinstance(error, SemelError)):
            return Reply(error=error)
        if self._status is None or not self._pieces:
            return Reply(error=RuntimeError("the application returned without an answer"))
        replay = any(n.lower() == replayed_header.lower() and v == "true" for n, v in self._headers)
        return Reply(self._status, self._headers, b"".join(self._pieces), replay=replay)


class _Lifespan:
    """The application's lifespan, in a separate task."""

    def __init__(self, app: Any, state: dict[str, Any]) -> None:
        self._app = app
        self._state = state
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._messages.put_nowait({"type": "lifespan.startup"})
        self._task = asyncio.create_task(self._run())
        answer = await self._await_answer()
        if answer["type"] == "lifespan.startup.failed":
            await asyncio.wait({self._task})
            error = self._task.exception()
            raise _cannot_start(answer.get("message", ""), error)
        if answer["type"] == "raised":
            error = answer["error"]
            self._task = None
            if isinstance(error, SemelError):
                raise _cannot_start("", error)
            # By any other exception an application reports that it has no lifespan.

    async def stop(self) -> None:
        if self._task is None or self._task.done():
            return
        self._messages.put_nowait({"type": "lifespan.shutdown"})
        await self._await_answer()
        _, waiting = await asyncio.wait({self._task}, timeout=ATTEMPT_SECONDS)
        if waiting:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _await_answer(self) -> Message:
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                return await self._answers.get()
        except TimeoutError:
            assert self._task is not None
            self._task.cancel()
            await asyncio.wait({self._task})
            raise CannotRun(
                f"the application's lifespan did not answer within {ATTEMPT_SECONDS:g} seconds",
                "see what its start-up and shutdown wait for",
            ) from None

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self._state}
        try:
            await self._app(scope, self._messages.get, self._send)
        except Exception as error:  # noqa: BLE001 -- start() tells a failure from an application without lifespan
            self._answers.put_nowait({"type": "raised", "error": error})
        else:
            self._answers.put_nowait({"type": "returned"})

    async def _send(self, message: Message) -> None:
        self._answers.put_nowait(message)


def _cannot_start(message: str, error: BaseException | None) -> CannotRun:
    told = message.strip().splitlines()
    reason = str(error) if error is not None else told[-1] if told else "it did not say why"
    if isinstance(error, SchemaError) or "semel migrate" in reason:
        return CannotRun(f"the store is not migrated: {reason}", MIGRATE)
    return CannotRun(
        f"the application's lifespan failed: {reason}",
        "start the application alone and see why it does not come up",
    )
