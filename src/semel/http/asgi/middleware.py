"""The ASGI middleware: pure ASGI on asyncio, without a framework.

It finds the operation of a request, reads its body and claims. A granted request calls the application, and the call
stays alive if its client disconnects. ``call.py`` does the rest for granted requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final, Unpack

from semel.core.model import Answer, Replay
from semel.engine.async_engine import AsyncEngine
from semel.engine.opening import open_or_close_async
from semel.engine.permit import Permit
from semel.engine.result import Refusal
from semel.errors import ConfigurationError, SemelError
from semel.http.asgi.bodies import command_of, finish
from semel.http.asgi.call import App, AsgiCall, Message, Receive, Scope, Send, send_answer, with_mark
from semel.http.asgi.disconnects import KeptAlive, Listener
from semel.http.asgi.request import mount_of
from semel.http.asgi.route import CALL_KEY
from semel.http.asgi.scope import capture_scope
from semel.http.body_time import BodyClock
from semel.http.caller import FromUser
from semel.http.coverage import OVERRIDES, Coverage
from semel.http.exchange import Exchange, Unprotected, count_mount, open_exchange
from semel.http.outage import UNCLAIMED
from semel.http.routing import Params, Route
from semel.http.settings import HttpSettings, MiddlewareSettings
from semel.http.spool import Spool
from semel.http.status import AsyncStatusResource
from semel.policy import Command
from semel.resuming.asgi import completer_of
from semel.resuming.worker import running
from semel.retention.worker import Reaper
from semel.stores.deadline import run_within


class SemelMiddleware:
    """Protects the commands of an ASGI application.

    Parameters: ``app`` and ``engine``; ``caller``, ``operations``, ``default`` and the other settings of
    :class:`~semel.http.settings.HttpSettings`; ``manage_engine`` opens and closes the engine with the application, and
    runs a :class:`~semel.retention.worker.Reaper` meanwhile, and a :class:`~semel.resuming.worker.Completer` where
    operations are resumable; ``serve_operations`` serves the status resource where ``problems.operations_path`` says:
    None for requests that name an operation, True for all below that path, False where the application serves it.
    The handler finds its permit in ``request.state.semel_permit`` and in ``scope["semel.permit"]``.

    Raises ConfigurationError: as HttpSettings does, and if ``caller`` visibly reads what only a middleware further
    inside verifies.
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
        self._exact = self.surface.routes.exact
        self._marking = OVERRIDES | {self.surface.key_name}  # an undeclared request without them may pass
        self._passing: set[tuple[Any, ...]] = set()  # requests that pass, as :meth:`_place` names them
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
        """Serve one connection, per the ASGI specification."""
        # Its operation.
        found = self._exact.get((scope.get("method"), scope.get("path")))  # type: ignore[arg-type]  # or nothing is found
        if found is None or scope.get("root_path") or CALL_KEY in scope:
            if _place(scope) in self._passing and self._marking.isdisjoint(dict(scope["headers"])):
                return await self.app(scope, receive, send)
            found = self._find_template(scope) or await self._find(scope, receive, send)
            if found is None:
                return None  # it is served
        # Its head: who asks, and under which key.
        route, params = found
        exchange = open_exchange(
            self.surface, route, params, scope["method"], scope.get("query_string", b""), scope["headers"], scope
        )
        if type(exchange) is not Exchange:
            return await self._end(exchange, scope, receive, send)
        if self.surface.may is not None and not await self._allows(exchange, scope, send):
            return None
        # Its body: the command.
        receiving = receive().__await__()
        try:
            awaited = next(receiving)
        except StopIteration as received:  # the body was already there, as nearly always
            message = received.value
        else:
            try:
                message, exchange.body_until = await self.body_clock.wait(receiving, awaited)
            except TimeoutError:
                return await send_answer(send, exchange.body_too_slow(scope))
        command: Command | Answer | None
        spool = None
        if message["type"] == "http.request" and not message.get("more_body"):
            body = message.get("body", b"")
            command = exchange.plain_command(body) or await command_of(exchange, body)
        else:
            spool = Spool()
            command = await self._read(exchange, scope, receive, message, spool)
            message = None
        if command is not exchange and not isinstance(command, Command):  # type: ignore[comparison-overlap]
            return None if command is None else await send_answer(send, command)
        # The claim; then its answer, or the application's.
        try:
            permit = await self.engine.claim(command, wait_seconds=exchange.wait_seconds)
        except UNCLAIMED as error:
            return await DeclaredCall(self, scope, receive, send, message, spool).run_unclaimed(exchange, error)
        except BaseException:
            if spool is not None:
                spool.close()
            raise
        if not isinstance(permit, Permit):
            if spool is not None:
                spool.close()
            return await self._refuse(exchange, permit, scope, send)
        if self.kept_alive.is_needless(asyncio.current_task()):
            return await DeclaredCall(self, scope, receive, send, message, spool).run(exchange, permit)
        listener = Listener(send)
        call = DeclaredCall(self, scope, receive, listener.send, message, spool)
        return await self.kept_alive.shield(call.run(exchange, permit), listener)

    def _find_template(self, scope: Scope) -> tuple[Route, Params] | None:
        """Find an operation with parameters in its path, in an application that is not mounted."""
        if scope["type"] != "http" or scope.get("root_path") or CALL_KEY in scope:
            return None
        return self.surface.routes.find_template(scope["method"], scope["path"])

    async def _find(self, scope: Scope, receive: Receive, send: Send) -> tuple[Route, Params] | None:
        """Find the operation of a request whose literal path matches none. None: the request was answered or served."""
        if scope["type"] != "http" or CALL_KEY in scope:
            if scope["type"] == "lifespan" and self._manage_engine:
                await self._lifespan(scope, receive, send)
            else:
                await self.app(scope, receive, send)
            return None
        path, method = route_path(scope), scope["method"]
        found = self.surface.routes.find(method, path) or await self._handle_undeclared(scope, path)
        if found is None:
            if self._coverage.is_fixed and not self._concerns_status(scope, path):
                self._remember(scope)
            await self.app(scope, receive, send)
        elif isinstance(found, Answer):
            await send_answer(send, found)
        else:
            return count_mount(*found, mount_of(scope))
        return None

    async def _allows(self, exchange: Exchange, scope: Scope, send: Send) -> bool:
        """Return whether the caller may make the request; answer it if not."""
        if await self.surface.allows_async(scope, exchange.wanted):
            exchange.allowed_at = time.monotonic()
            return True
        await send_answer(send, self.surface.problems.not_allowed())
        return False

    async def _refuse(self, exchange: Exchange, verdict: Refusal, scope: Scope, send: Send) -> None:
        """Answer a request that was granted no permit. It calls ``may`` again if the claim has waited."""
        status, headers, body = exchange.replay(verdict) if type(verdict) is Replay else exchange.present(verdict)
        if exchange.allowed_at is None or not exchange.must_ask_again() or await self._allows(exchange, scope, send):
            await send({"type": "http.response.start", "status": status, "headers": [*headers]})
            await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _read(
        self, exchange: Exchange, scope: Scope, receive: Receive, piece: Message, spool: Spool
    ) -> Command | Answer | None:
        """Read a body that comes in pieces into a command; None if its client disconnects before the end.

        Parameters: ``piece`` the first one; ``spool`` holds the body where there is a command, and is closed where
        there is none.
        """
        command: Command | Answer | None = None
        try:
            while piece["type"] == "http.request":
                chunk = piece.get("body", b"")
                command = exchange.feed(chunk)
                if command is not None:
                    break
                if spool.on_disk:
                    await asyncio.to_thread(spool.write, chunk)
                else:
                    spool.write(chunk)
                if not piece.get("more_body", False):
                    command = await finish(exchange, spool)
                    break
                piece, exchange.body_until = await self.body_clock.next_of(receive, exchange.body_until)
        except TimeoutError:
            command = exchange.body_too_slow(scope)
        finally:  # mostly a cancellation; from the claim on, the application owns the spool
            if type(command) is not Command:
                spool.close()
        return command

    async def _end(self, opened: Any, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that is no protected command, or let the application serve it."""
        if isinstance(opened, Answer):
            await send_answer(send, opened)
        else:
            mark = opened.mark if isinstance(opened, Unprotected) else None
            await self.app(scope, receive, send if mark is None else with_mark(send, mark))

    async def _handle_undeclared(self, scope: Scope, path: str) -> tuple[Route, Params] | Answer | None:
        """Handle an undeclared request: send Semel's own answer, return the default's route, or pass the request on."""
        if self._concerns_status(scope, path):
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

    def _concerns_status(self, scope: Scope, path: str) -> bool:
        return self._status.concerns(path) or self._status.concerns(scope["path"])

    def _remember(self, scope: Scope) -> None:
        """Remember that an undeclared request passes; so do others of its method and path without a marking header."""
        place = _place(scope)
        if self._marking.isdisjoint(dict(scope["headers"])) and sum(map(len, filter(None, place))) <= _PLACE_LENGTH_MAX:
            if len(self._passing) >= _PLACES_MAX:
                self._passing.clear()
            self._passing.add(place)

    async def close(self) -> None:
        """Wait for the handlers whose clients have disconnected."""
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
                await self.close()  # handlers that still run need what the application is about to close
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


_PLACES_MAX: Final = 1024  # paths, which clients may make up
_PLACE_LENGTH_MAX: Final = 512


def _place(scope: Scope) -> tuple[Any, ...]:
    """Return the method and the path of a request, in all forms that decide whether it passes."""
    return scope.get("method"), scope.get("path"), scope.get("raw_path"), scope.get("root_path")


class DeclaredCall(AsgiCall):
    """One request of a declared operation whose body was read: run the application under its permit."""

    def __init__(
        self,
        middleware: SemelMiddleware,
        scope: Scope,
        receive: Receive,
        send: Send,
        message: Message | None,
        spool: Spool | None,
    ) -> None:
        self._middleware: SemelMiddleware = middleware
        self._scope = capture_scope(scope) if scope.get("extensions") else scope
        self._receive = receive
        self._send = send
        self._request_message = message
        self._request_spool = spool

    async def run(self, exchange: Exchange, permit: Permit) -> None:
        """Run the application under the permit, settle and answer."""
        error: BaseException | None = None
        try:
            self._begin(exchange, permit)
            if exchange.route.is_simple:
                await self._middleware.app(self._scope, self.receive, self.send)
            else:
                await self._run_otherwise(permit)
        except GeneratorExit:
            raise  # the loop is closed: nothing can be awaited any more, and the lease will lapse
        except BaseException as raised:  # noqa: BLE001 -- classified and settled, then raised again
            error = raised
        finally:
            if self._request_spool is not None:
                self._close_spool()
        try:
            await self._conclude(permit, error)
        finally:
            error = None  # it holds this frame

    async def _run_otherwise(self, permit: Permit) -> None:
        """Run an application that may be cancelled, has a time limit, or whose client does not wait."""
        route = self._exchange.route
        self._heed_loss(route, permit)
        if self._exchange.wants_async:
            await self._accept(permit)
        call = self._middleware.app(self._scope, self.receive, self.send)
        await (run_within(call, max(0.0, self._deadline - time.monotonic())) if route.atomic else call)

    async def run_unclaimed(self, exchange: Exchange, error: SemelError) -> None:
        """Refuse a command that the store could not take, or run it unprotected if that was declared."""
        try:
            refused = exchange.answer_unclaimed(error)
            if isinstance(refused, Unprotected):
                assert refused.mark is not None
                await self._middleware.app(self._scope, self._receive_unprotected, with_mark(self._send, refused.mark))
            else:
                await send_answer(self._send, refused)
        finally:
            self._close_spool()

    async def _receive_unprotected(self) -> Message:
        message = self._request_message
        if message is None:
            piece = await self._next_piece()
            return piece if piece is not None else await self._receive()
        self._request_message = None
        return message


def route_path(scope: Scope) -> str:
    """Return the path below the application's mount point."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _raw_path(scope: Scope) -> bytes | None:
    raw: bytes | None = scope.get("raw_path")
    return None if raw is None else raw.removeprefix(scope.get("root_path", "").encode())


def _check_order(app: object, caller: object) -> None:
    """Refuse an order in which ``scope['user']`` is set too late. Starlette builds the inner middleware first."""
    inner: object = app
    while isinstance(caller, FromUser) and inner is not None:
        if type(inner).__name__ == "AuthenticationMiddleware":
            raise ConfigurationError(
                "SemelMiddleware is outside AuthenticationMiddleware, so it cannot see scope['user']; call "
                "app.add_middleware(SemelMiddleware, ...) first: the last middleware added is the outermost"
            )
        inner = getattr(inner, "app", None)
