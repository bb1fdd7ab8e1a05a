"""A kept request, run through an ASGI application once more without its client: what a completer gives to a handler.

Of the request's headers only those that say what the body is are kept, never a credential. So the application that is
called here is the one *inside* whatever authenticates; who the caller is, the permit's command says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from semel.engine.aio import AsyncEngine
from semel.engine.permit import Permit
from semel.errors import NothingHappened, SemelError
from semel.model import Answer
from semel.web.asgi_call import App, Message
from semel.web.asgi_route import CALL_KEY, RouteCall
from semel.web.capture import Capture
from semel.web.exchange import IncompleteAnswer
from semel.web.requests import KeptRequest, resumable_routes, unpack
from semel.web.routing import Params, Route
from semel.web.surface import Surface
from semel.worker.completer import Completer


class ResumedCall(RouteCall):
    """What an endpoint that claims for itself finds in place of its capture: its permit is there already."""

    __slots__ = ("reached",)

    def __init__(self, permit: Permit) -> None:
        self._permit = permit
        self._failure = None
        self.reached = False

    async def claim(
        self, surface: Surface, route: Route, params: Params, request: Mapping[str, Any]
    ) -> Permit | Answer | None:
        """The permit that the completer was granted."""
        self.reached = True
        return self._permit

    @property
    def failure(self) -> BaseException | None:
        """What the endpoint raised, whatever the framework made of it."""
        return self._failure


class NotReached(SemelError):
    """The application answered a kept request before the operation's endpoint was reached; nothing has run."""


class ResumedApp:
    """The handler of a completer that runs a kept request through an application.

    Parameters: ``app`` an ASGI application whose operations are declared at the middleware or at their endpoints;
    ``route`` of the operation; ``state`` the application's lifespan state, which each run gets a shallow copy of, as
    each request does from its server: what the lifespan has yielded, or a function that returns it once it is known;
    ``claims`` whether the endpoint claims for itself: what answers in its place is then no answer of the operation.
    False where ``app`` is what stands inside a middleware.
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

    async def __call__(self, permit: Permit, request: bytes) -> Answer:
        """Run it. Raises what the application raises, IncompleteAnswer and NotReached."""
        kept = unpack(request)
        call = ResumedCall(permit)
        capture = Capture(self._route.keeping)
        messages = [{"type": "http.request", "body": kept.body, "more_body": False}]

        async def receive() -> Message:
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            fits = True
            if message["type"] == "http.response.start":
                fits = capture.start(int(message["status"]), message.get("headers", ()))
            elif message["type"] == "http.response.body" and not capture.complete:
                fits = capture.add(message.get("body", b"")) if permit.kept else True
                if not message.get("more_body", False):
                    capture.end()
            if not fits:
                permit.kept = False

        state = self._state() if callable(self._state) else self._state
        await self._app(_scope(kept, call, permit, state or {}), receive, send)
        failure = call.failure
        if failure is not None and isinstance(failure, (NothingHappened, *permit.command.policy.nothing_happened)):
            raise failure  # what it proves is stronger than what the framework made of it
        if self._claims and not call.reached:
            raise NotReached(
                f"a request without its client was answered with {capture.status} before the endpoint of the operation "
                f"{self._route.name!r} was reached: let requests whose scope has 'semel.permit' pass what authenticates"
            )
        if not capture.complete:
            raise IncompleteAnswer("the application returned without completing its response")
        return capture.stored()


def _scope(kept: KeptRequest, call: ResumedCall, permit: Permit, state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": kept.method,
        "scheme": "http",
        "path": kept.path,
        "raw_path": kept.path.encode(),
        "query_string": kept.query,
        "root_path": kept.root,
        "headers": [*kept.headers, (b"content-length", b"%d" % len(kept.body))],
        "client": None,
        "server": None,
        "state": {**state, "semel_permit": permit},
        "semel.permit": permit,
        CALL_KEY: call,
    }


def completer_of(
    surface: Surface, engine: AsyncEngine, app: App, state: Callable[[], Mapping[str, Any] | None] | None = None
) -> Completer | None:
    """A completer of the surface's resumable operations; None where there are none.

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
    """A completer of the resumable ones among these operations; None where there are none."""
    resumable = [route for route in routes if route.policy.resumable]
    if not resumable:
        return None
    completer = Completer(engine)
    for route in resumable:
        completer.register(route.name, route.policy, ResumedApp(app, route, state, claims=claims))
    return completer
