"""A kept request, run through an ASGI application once more without its client: what a completer gives to a handler.

Of the request's headers only those that say what the body is are kept, never a credential. So the application that is
called here is the one *inside* whatever authenticates; who the caller is, the permit's command says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from semel.engine.aio import AsyncEngine
from semel.engine.permit import Permit
from semel.model import Answer
from semel.web.asgi_call import App, Message
from semel.web.asgi_route import CALL_KEY, RouteCall
from semel.web.capture import Capture
from semel.web.exchange import IncompleteAnswer
from semel.web.routing import Params, Route
from semel.web.surface import Surface
from semel.worker.completer import Completer


class ResumedCall(RouteCall):
    """What an endpoint that claims for itself finds in place of its capture: its permit is there already."""

    __slots__ = ()

    def __init__(self, permit: Permit) -> None:
        self._permit = permit
        self._failure = None

    async def claim(
        self, surface: Surface, route: Route, params: Params, request: Mapping[str, Any]
    ) -> Permit | Answer | None:
        """The permit that the completer was granted."""
        return self._permit


class ResumedApp:
    """The handler of a completer that runs a kept request through an application.

    Parameters: ``app`` an ASGI application whose operations are declared at the middleware or at their endpoints;
    ``route`` of the operation.
    """

    def __init__(self, app: App, route: Route) -> None:
        self._app = app
        self._route = route

    async def __call__(self, permit: Permit, request: bytes) -> Answer:
        """Run it. Raises what the application raises, and IncompleteAnswer."""
        line, _, body = request.partition(b"\n")
        head = json.loads(line)
        capture = Capture(self._route.keeping)
        messages = [{"type": "http.request", "body": body, "more_body": False}]

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

        await self._app(_scope(head, body, permit), receive, send)
        if not capture.complete:
            raise IncompleteAnswer("the application returned without completing its response")
        return capture.stored()


def _scope(head: Mapping[str, Any], body: bytes, permit: Permit) -> dict[str, Any]:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": head["method"],
        "scheme": "http",
        "path": head["path"],
        "raw_path": head["path"].encode(),
        "query_string": head["query"].encode("latin-1"),
        "root_path": "",
        "headers": [*headers, (b"content-length", b"%d" % len(body))],
        "client": None,
        "server": None,
        "state": {"semel_permit": permit},
        "semel.permit": permit,
        CALL_KEY: ResumedCall(permit),
    }


def completer_of(surface: Surface, engine: AsyncEngine, app: App) -> Completer | None:
    """A completer of the surface's resumable operations; None where there are none."""
    routes = [
        surface.route(each.name or f"{method} {each.template}", each.policy)
        for each in surface.operations
        if each.policy.resumable
        for method in (each.methods if each.name is None else each.methods[:1])
    ]
    if not routes:
        return None
    completer = Completer(engine)
    for route in routes:
        completer.register(route.name, route.policy, ResumedApp(app, route))
    return completer
