"""The ASGI middleware: pure ASGI on asyncio, without a framework. What one request goes through: ``declared.py``.

It finds the operation, hands the request over, and keeps the handlers alive whose clients have gone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Unpack

from semel.core.model import Answer
from semel.engine.async_engine import AsyncEngine
from semel.engine.opening import open_or_close_async
from semel.errors import ConfigurationError
from semel.http.asgi.call import App, Message, Receive, Scope, Send, send_answer, with_mark
from semel.http.asgi.declared import DeclaredCall
from semel.http.asgi.disconnects import KeptAlive
from semel.http.asgi.request import mount_of
from semel.http.asgi.route import CALL_KEY
from semel.http.body_time import BodyClock
from semel.http.caller import FromUser
from semel.http.coverage import OVERRIDES, Coverage
from semel.http.exchange import Exchange, Unprotected, open_exchange
from semel.http.routing import Params, Route
from semel.http.settings import HttpSettings, MiddlewareSettings
from semel.http.status import AsyncStatusResource
from semel.resuming.asgi import completer_of
from semel.resuming.worker import running
from semel.retention.worker import Reaper


class SemelMiddleware:
    """Protects the commands of an ASGI application.

    Parameters: ``app`` and ``engine``; ``caller``, ``operations``, ``default`` and the other settings of
    :class:`~semel.http.settings.HttpSettings`; ``manage_engine`` opens and closes the engine with the application, and
    runs a :class:`~semel.retention.worker.Reaper` meanwhile, and a :class:`~semel.resuming.worker.Completer` where
    operations are resumable; ``serve_operations`` serves the status resource where ``problems.operations_path`` says:
    None for requests that name an operation, True for all below that path, False where the application serves it.
    The handler finds its permit in ``request.state.semel_permit`` and in ``scope["semel.permit"]``.

    Raises ConfigurationError: as HttpSettings does, and where it can be seen that ``caller`` reads what only a
    middleware further inside verifies.
    """

    def __init__(
        self,
        app: App,
        engine: AsyncEngine,
        *,
        manage_engine: bool = False,
        serve_operations: bool | None = None,
        **settings: Unpack[MiddlewareSettings],
    ) -> None:
        if not isinstance(engine, AsyncEngine):
            raise ConfigurationError(f"an ASGI application needs an AsyncEngine, not {type(engine).__name__}")
        self.app = app
        self.engine = engine
        self.surface = HttpSettings.of(engine, settings, ("manage_engine", "serve_operations"))
        self._manage_engine = manage_engine
        self._exact, self._find_template = self.surface.routes.exact, self.surface.routes.find_template
        self._status = AsyncStatusResource(self.surface, engine, serve_operations)
        self._coverage = Coverage(self.surface, app)
        self.kept_alive = KeptAlive()
        self.body_clock = BodyClock(self.surface.body_seconds_max)
        self._reaper = Reaper(engine)
        self._state: Mapping[str, Any] | None = None  # of the lifespan
        self._completer = completer_of(self.surface, engine, app, lambda: self._state)
        self._completing = running(None)
        _check_order(app, self.surface.caller)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, as ASGI says."""
        if scope["type"] != "http" or CALL_KEY in scope:
            await self._pass_on(scope, receive, send)
            return
        path, mount = scope["path"], ""
        if scope.get("root_path"):
            path, mount = route_path(scope), mount_of(scope)
        method = scope["method"]
        found: Any = self._exact.get((method, path)) or self._find_template(method, path)
        if found is None:
            found = await self._handle_undeclared(scope, path)
            if found is None:
                await self.app(scope, receive, send)
                return
            if isinstance(found, Answer):
                await send_answer(send, found)
                return
        surface, (route, params) = self.surface, found
        query = scope.get("query_string", b"")
        exchange = open_exchange(surface, route, params, method, query, scope["headers"], scope, mount)
        if type(exchange) is not Exchange:
            await self._end(exchange, scope, receive, send)
        elif surface.may is None:
            await DeclaredCall(self, exchange, scope, receive, send).run()
        elif await surface.allows_async(scope, exchange.wanted):
            exchange.allowed_at = time.monotonic()
            await DeclaredCall(self, exchange, scope, receive, send).run()
        else:
            await send_answer(send, surface.problems.not_allowed())

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection that holds no command, or one that another layer takes care of."""
        if scope["type"] == "lifespan" and self._manage_engine:
            await self._lifespan(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _end(self, opened: Any, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that is no protected command, or let the application serve it."""
        if isinstance(opened, Answer):
            await send_answer(send, opened)
        else:
            mark = opened.mark if isinstance(opened, Unprotected) else None
            await self.app(scope, receive, send if mark is None else with_mark(send, mark))

    async def _handle_undeclared(self, scope: Scope, path: str) -> tuple[Route, Params] | Answer | None:
        """What becomes of a request to no declared operation: Semel's own answer, the default's route, or nothing."""
        if self._status.concerns(path) or self._status.concerns(scope["path"]):
            answer = await self._status.answer(path, scope)
            if answer is not None:
                return answer
        headers, overriding = scope["headers"], list[str]()
        if not OVERRIDES.isdisjoint(dict(headers)):
            overriding = [value.decode("latin-1") for name, value in headers if name in OVERRIDES]
        return self._coverage.judge(
            scope["method"], path, lambda: self._is_keyed(scope), _raw_path(scope), overriding=overriding
        )

    def _is_keyed(self, scope: Scope) -> bool:
        return self.surface.key_name in dict(scope["headers"])

    async def close(self) -> None:
        """Wait for the handlers whose clients have gone."""
        await self.kept_alive.close()

    # --- lifespan -----------------------------------------------------------------------------

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open the engine before the application starts, close it once the application has stopped."""
        begun = False

        async def receive_and_open() -> Message:
            nonlocal begun
            message = await receive()
            if message["type"] == "lifespan.startup":
                begun = True
                await open_or_close_async(self.engine)
                await self._reaper.__aenter__()
                self._state = scope.get("state")
                self._completing = running(self._completer)
                await self._completing.__aenter__()
            elif message["type"] == "lifespan.shutdown":
                await self.close()  # those that still run need what the application is about to close
            return message

        async def close_and_send(message: Message) -> None:
            if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
                await self._close_all()
            await send(message)

        try:
            await self.app(scope, receive_and_open, close_and_send)
        except Exception:
            if begun:
                raise
            # An application without lifespan raises at once; we answer in its place.
            await receive_and_open()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await close_and_send({"type": "lifespan.shutdown.complete"})

    async def _close_all(self) -> None:
        await self._reaper.__aexit__()
        await self._completing.__aexit__(None, None, None)
        await self.close()
        await self.engine.close()


def route_path(scope: Scope) -> str:
    """The path below the place where the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _raw_path(scope: Scope) -> bytes | None:
    raw: bytes | None = scope.get("raw_path")
    return None if raw is None else raw.removeprefix(scope.get("root_path", "").encode())


def _check_order(app: object, caller: object) -> None:
    """Starlette builds from the inside out, so that what is inside can be seen here."""
    inner: object = app
    while isinstance(caller, FromUser) and inner is not None:
        if type(inner).__name__ == "AuthenticationMiddleware":
            raise ConfigurationError(
                "SemelMiddleware is outside AuthenticationMiddleware, so it cannot see scope['user']; call "
                "app.add_middleware(SemelMiddleware, ...) first: the last middleware added is the outermost"
            )
        inner = getattr(inner, "app", None)
