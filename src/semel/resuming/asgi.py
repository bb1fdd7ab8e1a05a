"""Run a stored request through an ASGI application again, without its client, as a completer's handler.

Only the headers that describe the body and the address are kept, never a credential. So the application that is called
here is the one *inside* the authentication; the permit's command names the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from semel.core.model import Answer
from semel.engine.async_engine import AsyncEngine
from semel.engine.permit import Permit
from semel.errors import NothingHappened
from semel.http.asgi.call import App, Message, Send
from semel.http.asgi.route import CALL_KEY, RouteCall
from semel.http.capture import Capture
from semel.http.exchange import CUT, UNFINISHED, IncompleteAnswer
from semel.http.routing import Params, Route
from semel.http.settings import HttpSettings
from semel.policy import Command
from semel.resuming.request import RESUMED, Asking, KeptRequest, NotReached, resumable_routes, unpack
from semel.resuming.worker import Completer

_REACHED: Final = Answer(204, (), b"")


class ResumedCall(RouteCall):
    """The permit for an endpoint that claims for itself, in place of its capture.

    Parameters: ``take`` receives the application's answer where a request's answer is captured: middleware further
    outside processes each replay anew.
    """

    __slots__ = ("inside", "reached", "take")

    def __init__(self, permit: Permit | None, take: Callable[[Message], None]) -> None:
        self._permit = permit
        self._endpoint_error = self._endpoint_error_status = None
        self.take = take
        self.reached = False
        self.inside = False  # whether the request came to a capture

    def send_inside(self, send: Send) -> Send:
        """Wrap a send so that it takes the answer where the capture is."""
        if self.inside:
            return send
        self.inside = True

        async def send_taken(message: Message) -> None:
            self.take(message)
            await send(message)

        return send_taken

    async def claim(
        self, surface: HttpSettings, route: Route, params: Params, request: Mapping[str, Any]
    ) -> Permit | Answer | None:
        """Return the completer's permit; before the completer has claimed, an answer that ends the call."""
        self.reached = True
        return _REACHED if self._permit is None else self._permit

    async def outlive_client(self) -> None:
        """Wait for ever: there is no client that could disconnect."""
        await asyncio.Event().wait()

    @property
    def own_status(self) -> int | None:
        """Return the status of the exception, if it is an answer itself."""
        return self._endpoint_error_status

    @property
    def failure(self) -> BaseException | None:
        """Return the endpoint's exception, however the framework answered it."""
        return self._endpoint_error


class ResumedApp:
    """The handler of a completer that runs a kept request through an application.

    Parameters: ``app`` an ASGI application whose operations are declared at the middleware or at their endpoints;
    ``route`` of the operation; ``state`` the application's lifespan state, or a function that returns it once it is
    known: each run gets a shallow copy, as each request does from its server; ``claims`` whether the endpoint claims
    for itself: an answer from elsewhere is then none of the operation's. False if ``app`` is inside a middleware.
    """

    def __init__(
        self,
        app: App,
        route: Route,
        state: Mapping[str, Any] | Callable[[], Mapping[str, Any] | None] | None = None,
        *,
        claims: bool = True,
    ) -> None:
        self._app = app
        self._route = route
        self._state = state
        self._claims = claims

    async def check(self, command: Command, request: bytes) -> None:
        """Check before the claim that this request reaches the endpoint; no endpoint runs.

        Raises NotReached: the execution stays as it is, and loses no attempt.
        """
        if not self._claims:
            return
        capture = Capture(self._route.keeping)
        call = ResumedCall(None, _taking(capture, None))
        try:
            await self._call(unpack(request), call, Asking(command))
        except Exception as error:
            if not call.reached:
                raise self._not_reached(f"raised {type(error).__name__}") from error
        if not call.reached:
            raise self._not_reached(f"was answered with {capture.status}")

    async def __call__(self, permit: Permit, request: bytes) -> Answer:
        """Run the request. Raises the application's errors, IncompleteAnswer and NotReached."""
        capture = Capture(self._route.keeping)
        call = ResumedCall(permit, _taking(capture, permit))
        await self._call(unpack(request), call, permit)
        failure = call.failure
        if failure is not None and isinstance(failure, (NothingHappened, *permit.command.policy.nothing_happened)):
            raise failure  # the exception proves more than the framework's answer to it
        if self._claims and not call.reached:
            raise self._not_reached(f"was answered with {capture.status}")
        if (
            failure is not None
            and capture.status < 400
            and getattr(failure, "status_code", call.own_status) != capture.status
        ):
            raise failure  # an error page is no proof of success
        if not capture.complete:
            raise IncompleteAnswer(CUT if capture.ended else UNFINISHED)
        return capture.to_store()

    async def _call(self, kept: KeptRequest, call: ResumedCall, permit: Permit | Asking) -> None:
        messages = [{"type": "http.request", "body": kept.body, "more_body": False}]

        async def receive() -> Message:
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if not call.inside:
                call.take(message)

        state = self._state() if callable(self._state) else self._state
        await self._app(_scope(kept, call, permit, state or {}), receive, send)

    def _not_reached(self, what: str) -> NotReached:
        return NotReached.describe(self._route.name, what, "scope")


def _taking(capture: Capture, permit: Permit | None) -> Callable[[Message], None]:
    """Feeds a capture with an application's messages; an answer that is too long is not kept."""
    keeps = True

    def take(message: Message) -> None:
        nonlocal keeps
        fits = True
        if message["type"] == "http.response.start":
            fits = capture.start(int(message["status"]), message.get("headers", ()))
        elif message["type"] == "http.response.body" and not capture.ended:
            if keeps:
                fits = capture.add(message.get("body", b""))
            else:
                capture.count(message.get("body", b""))
            if not message.get("more_body", False):
                capture.end()
        if not fits:
            keeps = False
            if permit is not None:
                permit.kept = False

    return take


def _scope(kept: KeptRequest, call: ResumedCall, permit: Permit | Asking, state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": kept.method,
        "scheme": kept.scheme,
        "path": kept.path,
        "raw_path": kept.path.encode(),
        "query_string": kept.query,
        "root_path": kept.root,
        "headers": [*kept.headers, (b"content-length", b"%d" % len(kept.body))],
        "client": None,
        "server": None,
        "state": {**state, "semel_permit": permit},
        "semel.permit": permit,
        RESUMED: True,
        CALL_KEY: call,
    }


def completer_of(
    surface: HttpSettings, engine: AsyncEngine, app: App, state: Callable[[], Mapping[str, Any] | None] | None = None
) -> Completer | None:
    """Make a completer of the surface's resumable operations; None if there are none.

    Parameters: ``app`` the application *inside* the middleware; ``state`` as :class:`ResumedApp`.
    """
    return completer_for(engine, app, resumable_routes(surface), state, claims=False)


def completer_for(
    engine: AsyncEngine,
    app: App,
    routes: Iterable[Route],
    state: Callable[[], Mapping[str, Any] | None] | None = None,
    *,
    claims: bool = True,
) -> Completer | None:
    """Make a completer of the resumable ones among these operations; None if there are none."""
    resumable = [route for route in routes if route.policy.resumable]
    if not resumable:
        return None
    completer = Completer(engine)
    for route in resumable:
        completer.register(route.name, route.policy, ResumedApp(app, route, state, claims=claims))
    return completer
