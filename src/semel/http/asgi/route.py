"""Claiming *inside* an endpoint, after authentication and validation, while the answer is captured outside.

The capture wraps the whole application and does nothing until an endpoint claims. From then on it
is the same call as in ``call.py``: the answer is held until the application has returned, settled, sent.
Where the claim ends in an answer of Semel's own, such as a replay, that answer leaves from the capture once the
application has returned; what the application has made of it on its way out is dropped.
Requests that the application refuses before the claim are never recorded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from semel.core.model import Answer
from semel.engine.async_engine import AsyncEngine
from semel.engine.permit import Permit
from semel.errors import ConfigurationError, RequestTooLarge
from semel.http.asgi.bodies import command_of, finish
from semel.http.asgi.call import App, AsgiCall, Message, Receive, Scope, Send, send_answer
from semel.http.asgi.disconnects import KeptAlive, Listener, is_disconnect
from semel.http.asgi.request import mount_of
from semel.http.asgi.scope import capture_scope
from semel.http.body_time import BodyClock
from semel.http.capture import instead_of
from semel.http.exchange import (
    LENGTH_DIGITS_MAX,
    RETRY_BYTES_MAX,
    Exchange,
    Unprotected,
    body_too_slow,
    count_mount,
    open_exchange,
    too_large,
)
from semel.http.headers import Headers
from semel.http.outage import UNCLAIMED
from semel.http.routing import UNSAFE_METHODS, Params, Route
from semel.http.settings import HttpSettings
from semel.http.spool import Spool
from semel.policy import Command
from semel.stores.deadline import Limit

CALL_KEY: Final = "semel.call"
HEADERS_KEY: Final = "semel.headers"  # in the scope: headers for the framework's answer to a command that raised
ANSWER_SECONDS: Final = 1.0  # after an ATOMIC handler's deadline, for the framework to make an answer of its error


class RouteCall(AsgiCall):
    """One request of an application whose endpoints claim for themselves."""

    _own_answer: Answer | None = None  # sent in place of the application's answer
    _replaced_headers: Headers = ()  # the headers of the application's answer
    _body_refusal: Answer | None = None  # sent in place of any answer that the application makes of a body that ends
    _body_too_long = False  # for any command; the body is no longer kept
    _body_until = 0.0
    _body_leaked = False
    _body_cut = False
    _body_end_told = False
    _limit: Limit | None = None
    _mark: tuple[bytes, bytes] | None = None
    _body_whole = False
    _passes_through = True  # the application's answer goes through as it is

    def __init__(
        self,
        middleware: CaptureMiddleware,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._middleware: CaptureMiddleware = middleware
        self._scope = capture_scope(scope) if scope.get("extensions") else scope
        self._receive = receive
        self._send = send
        self.outer = scope  # which the outer layers see
        self.runner = asyncio.current_task()  # the task that runs the application

    def listen(self) -> Listener:
        """Run in a task of its own from here on; return the listener that gets the answer while the client is there."""
        self.runner = None
        listener = Listener(self._send)
        self._send = listener.send
        return listener

    async def run_app(self) -> None:
        """Call the application; settle and answer if an endpoint was granted a permit on the way."""
        scope = self._scope
        scope[CALL_KEY] = self
        if self.runner is None:
            self.runner = asyncio.current_task()
        error: BaseException | None = None
        try:
            try:
                await self._middleware.app(scope, self.receive, self.send)
            except GeneratorExit:
                raise  # the loop is closed: nothing can be awaited any more, and the lease will lapse
            except BaseException as raised:
                replaced = self._own_answer is not None or self._body_refusal is not None
                if self._permit is None and not (replaced and isinstance(raised, Exception)):
                    raise
                error = raised
            finally:
                if self._request_spool is not None:
                    self._close_spool()
            if not self._passes_through:
                self._request_message = None  # the rest of the body, which the application has not read
                if self._limit is not None:
                    error, self._limit = self._limit.end(error), None
                if self._permit is not None:
                    await self._conclude(self._permit, error)
                elif self._own_answer is not None:
                    await self._answer_instead(self._own_answer, error)
                elif self._body_refusal is not None:
                    await send_answer(self._send, self._body_refusal)
        finally:
            # Each of these would close a reference cycle, and leave the whole request to the collector.
            scope.pop(CALL_KEY, None)
            error = self._endpoint_error = self.runner = None

    async def _answer_instead(self, answer: Answer, error: BaseException | None) -> None:
        """Send Semel's own answer in place of the application's; then re-raise what the application raised."""
        try:
            await send_answer(self._send, instead_of(self._replaced_headers, answer))
        except Exception as refused:
            if not is_disconnect(refused):
                raise
        try:
            if error is not None:
                raise error
        finally:
            error = None  # it holds this frame

    # --- for the endpoint's wrapper -------------------------------------------------------------

    async def claim(
        self, surface: HttpSettings, route: Route, params: Params, request: Mapping[str, Any]
    ) -> Permit | Answer | None:
        """Claim for the endpoint: its permit, the answer that leaves instead, or None to run unprotected."""
        if self._permit is not None or self._own_answer is not None:
            raise ConfigurationError(
                f"the operation {route.name!r} was called by another operation's handler; a request is one command: "
                "declare only one of the two"
            )
        if self._body_leaked:
            raise ConfigurationError(
                f"the body of a request to {route.name!r} was read by an endpoint that is not the declared one; "
                "write @semel.command outside of what reads the body, or use functools.wraps there"
            )
        scope = self._scope
        query = scope.get("query_string", b"")
        inner = getattr(request, "scope", request)  # the endpoint's, which may be mounted deeper than the capture
        if inner.get("root_path"):
            route, params = count_mount(route, params, mount_of(inner))
        opened = open_exchange(surface, route, params, scope["method"], query, scope["headers"], request)
        if not isinstance(opened, Exchange):
            return self._end_unclaimed(route, opened)
        if self._body_too_long:
            return self._hold(route, surface.problems.of_error(too_large(route)))
        command = await self._command(surface, opened)
        if command is not opened and isinstance(command, Answer):  # type: ignore[comparison-overlap]
            return self._hold(route, command)
        try:
            permit = await self._middleware.engine.claim(command, wait_seconds=opened.wait_seconds)
        except UNCLAIMED as error:
            return self._end_unclaimed(route, opened.answer_unclaimed(error))
        if not isinstance(permit, Permit):
            return self._hold(route, opened.present(permit))
        self._begin(opened, permit)
        self._passes_through = False
        if route.is_simple:
            return permit
        self._heed_loss(route, permit)
        if opened.wants_async:
            await self._accept(permit)
        if route.atomic:
            # The handler has its own limit. The framework's work after it holds the transaction open, too.
            left = permit.deadline_monotonic - time.monotonic()
            assert self.runner is not None
            self._limit = Limit(self.runner, max(0.0, left) + ANSWER_SECONDS)
        return permit

    def _end_unclaimed(self, route: Route, end: Answer | Unprotected) -> Answer | None:
        """End a request that claims nothing: return the answer that leaves, or None to run unprotected."""
        if isinstance(end, Answer):
            return self._hold(route, end)
        self._mark, self._passes_through = end.mark, end.mark is None
        return None

    def _hold(self, route: Route, answer: Answer) -> Answer:
        """Replace the application's answer from here on: this one leaves once the application has returned."""
        self._own_answer, self._passes_through = answer, False
        self._unclaimed_deadline = time.monotonic() + route.policy.deadline_seconds
        self._end_event = None
        return answer

    @property
    def has_claimed(self) -> bool:
        """Return whether an endpoint has claimed, granted or not."""
        return self._permit is not None or self._own_answer is not None

    def note_failure(self, error: BaseException, own_status: int | None = None) -> None:
        """Note what the endpoint raised, before the framework answers it; ``own_status`` if it is an answer itself."""
        self._endpoint_error = error
        self._endpoint_error_status = own_status

    def note(self, error: BaseException) -> None:
        """Note an exception that the framework met after the claim; one that the endpoint raised takes precedence."""
        if self.has_claimed and self._endpoint_error is None:
            self.note_failure(error)

    async def outlive_client(self) -> None:
        """Wait after a disconnect until the application may learn of it: with a command, once it runs too long."""
        if self.has_claimed:
            await self._until_it_may_know()
            if self.ended:
                await asyncio.Event().wait()  # nothing is left to interrupt

    # --- what the application gets --------------------------------------------------------------

    async def receive(self) -> Message:
        """Receive the body, kept for the fingerprint unless no claim can follow; then as ``AsgiCall`` does."""
        message, spool = self._request_message, self._request_spool
        if message is not None:
            self._request_message = None
            return message
        if spool is None:
            if self._body_whole:
                return await (self._after_body() if self.has_claimed else self._receive())
            if self._body_too_long or self._body_refusal is not None:
                return await self._receive()
            if not self._middleware.may_claim(self._scope.get("endpoint")):
                self._body_leaked = True
                return await self._receive()
            spool = self._request_spool = Spool()
            if self._middleware.bodies.announces_too_much(self._scope):
                return self._refuse(self._middleware.bodies.too_long(self._scope))
        if self._spool_read_at < spool.size:
            chunk = await _read(spool, self._spool_read_at)
            self._spool_read_at += len(chunk)
            self._body_end_told = self._body_whole and self._spool_read_at == spool.size
            return {"type": "http.request", "body": chunk, "more_body": not self._body_end_told}
        if not self._body_whole:
            return await self._next_of(spool)
        if not self._body_end_told:  # the body is empty, or its end came with the claim
            self._body_end_told = True
            return {"type": "http.request", "body": b"", "more_body": False}
        return await (self._after_body() if self.has_claimed else self._receive())

    async def _next_of(self, spool: Spool) -> Message:
        """Receive the next piece, unless it makes a command's body too long or too slow."""
        bytes_max, is_declared = self._middleware.bodies.bytes_max(self._scope.get("endpoint"), self._scope["method"])
        try:
            message = await self._pull(spool, is_command=is_declared)
        except TimeoutError:
            return self._refuse(body_too_slow(self._middleware.bodies.surface, self._scope))
        self._spool_read_at = spool.size
        self._body_end_told = self._body_whole
        if spool.size > max(bytes_max, RETRY_BYTES_MAX):
            if is_declared:
                return self._refuse(self._middleware.bodies.too_long(self._scope))
            self._body_too_long = True
            self._close_spool()
        return message

    def _refuse(self, answer: Answer) -> Message:
        self._body_refusal, self._passes_through = answer, False
        self._close_spool()
        return {"type": "http.disconnect"}

    def send(self, message: Message) -> Awaitable[None]:  # type: ignore[override]  # no coroutine around another
        """Hold a granted command's answer; drop an answer that Semel's own replaces; let every other one through."""
        if self._passes_through:
            return self._send(message)
        return self._send_ungranted(message) if self._permit is None else AsgiCall.send(self, message)

    async def _send_ungranted(self, message: Message) -> None:
        if self._body_refusal is not None:
            return
        if self._own_answer is not None:
            if message["type"] == "http.response.start":
                self._replaced_headers = tuple(message.get("headers", ()))
            elif message["type"] == "http.response.body" and not message.get("more_body", False):
                self.end()
            return
        if self._mark is not None and message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), self._mark]}
        await self._send(message)

    def send_inside(self, send: Send) -> Send:
        """Send for a capture inside this one: this one already has the answer, so there is nothing to add."""
        return send

    async def _pull(self, spool: Spool, *, is_command: bool) -> Message:
        """Read the next piece from the client into the spool. Raises TimeoutError: a command's body takes too long."""
        if is_command:
            message, self._body_until = await self._middleware.bodies.clock.next_of(self._receive, self._body_until)
        else:
            message = await self._receive()
        await self._keep(spool, message)
        return message

    async def _keep(self, spool: Spool, message: Message) -> None:
        """Take a piece of the body, or note that there will be no more."""
        if message["type"] == "http.request":
            if spool.on_disk:
                await asyncio.to_thread(spool.write, message.get("body", b""))
            else:
                spool.write(message.get("body", b""))
            self._body_whole = not message.get("more_body", False)
        else:
            self._body_whole = self._body_cut = True

    async def _command(self, surface: HttpSettings, exchange: Exchange) -> Command | Answer:
        """Read the rest of the body, which the application left unread, and fingerprint the whole."""
        spool, limit = self._request_spool, exchange.route.bytes_read_max
        try:
            if spool is None:
                receiving = self._receive().__await__()
                try:
                    awaited = next(receiving)
                except StopIteration as received:  # the body was already there, as nearly always
                    message = received.value
                else:
                    message, self._body_until = await self._middleware.bodies.clock.wait(receiving, awaited)
                if message["type"] == "http.request" and not message.get("more_body"):  # the whole body, as mostly
                    self._request_message, self._body_whole = message, True  # the application gets the body as it came
                    body = message.get("body", b"")
                    return exchange.plain_command(body) or await command_of(exchange, body)
                spool = self._request_spool = Spool()
                await self._keep(spool, message)
            while not self._body_whole and spool.size <= limit:
                await self._pull(spool, is_command=True)
        except TimeoutError:
            return exchange.body_too_slow(self._scope)
        if self._body_cut:
            return exchange.cut_short()  # the client disconnected in the middle: half a request is no command
        if spool.size > limit:
            return surface.problems.of_error(too_large(exchange.route))
        if not spool.on_disk:
            return await command_of(exchange, spool.content())
        at = 0
        while at < spool.size:
            chunk = await _read(spool, at)
            at += len(chunk)
            refusal = exchange.feed(chunk)
            if refusal is not None:
                return refusal
        return await finish(exchange, spool)

    def _point(self, headers: Headers) -> None:
        self.outer[HEADERS_KEY] = headers


class Bodies:
    """The limits of an application's command bodies.

    Parameters: ``bytes_max`` of an endpoint and a method: the longest body, and whether they are known to be a command.
    """

    def __init__(self, surface: HttpSettings, bytes_max: Callable[[Any, str], tuple[int, bool]]) -> None:
        self.surface = surface
        self.bytes_max = bytes_max
        self.clock = BodyClock(surface.body_seconds_max)

    def announces_too_much(self, scope: Scope) -> bool:
        """Return whether a request to a command announces too long a body."""
        bytes_max, is_declared = self.bytes_max(scope.get("endpoint"), scope["method"])
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        read_max = max(bytes_max, RETRY_BYTES_MAX)
        return is_declared and length.isdigit() and (len(length) > LENGTH_DIGITS_MAX or int(length) > read_max)

    def too_long(self, scope: Scope) -> Answer:
        """Return the answer to a body that is too long."""
        return self.surface.problems.of_error(_too_long(self.bytes_max(scope.get("endpoint"), scope["method"])[0]))


def _too_long(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"The body is larger than {limit} bytes; send a smaller one.")


async def _read(spool: Spool, at: int) -> bytes:
    return await asyncio.to_thread(spool.read, at) if spool.on_disk else spool.read(at)


class MayReach(Protocol):
    """Predicts whether a request may reach an endpoint that claims; ``learn`` reports one that it missed."""

    def __call__(self, scope: Scope) -> bool: ...
    def learn(self) -> None: ...


class CaptureMiddleware:
    """Wraps an application whose endpoints claim for themselves. Pure ASGI.

    Parameters: ``may_claim`` whether an endpoint may claim, so that the body must be kept; ``surface`` and
    ``bytes_max`` limit its body's size and time; ``may_reach`` whether a request may reach such an endpoint: its
    application then runs in its own task if the server may cancel its call.
    """

    def __init__(
        self,
        app: App,
        engine: AsyncEngine,
        may_claim: Callable[..., bool],
        kept_alive: KeptAlive,
        surface: HttpSettings,
        bytes_max: Callable[[Any, str], tuple[int, bool]],
        may_reach: MayReach,
    ) -> None:
        self.app = app
        self.bodies = Bodies(surface, bytes_max)
        self.engine = engine
        self.may_claim = may_claim
        self._may_reach = may_reach
        self._kept_alive = kept_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, per the ASGI specification."""
        if scope["type"] != "http" or scope["method"] not in UNSAFE_METHODS:
            await self.app(scope, receive, send)
        elif CALL_KEY in scope:
            await self.app(scope, receive, scope[CALL_KEY].send_inside(send))
        else:
            call = RouteCall(self, scope, receive, send)
            if self._kept_alive.is_needless(call.runner):
                await call.run_app()
            elif not self._may_reach(call.outer):
                try:
                    await call.run_app()
                finally:
                    if call.has_claimed:
                        self._may_reach.learn()
            else:
                await self._kept_alive.shield(call.run_app(), call.listen())
