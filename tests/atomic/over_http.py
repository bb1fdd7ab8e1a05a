"""One ATOMIC operation over HTTP on the engine of a database's tests, of either colour."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from semel import Policy
from semel.http.asgi.middleware import SemelMiddleware
from semel.http.caller import Caller, from_state
from semel.http.routing import Operation
from semel.http.wsgi.middleware import SemelMiddleware as WsgiMiddleware
from tests.engine.telling import at_once
from tests.web.driving import KEY, Response, asgi_call, asgi_scope, head, wsgi_call, wsgi_environ

ALICE = Caller("acme", "alice")
Writing = Callable[[Any], Coroutine[Any, Any, None]]
PATH = "/payments"
SETTINGS: dict[str, Any] = {
    "caller": from_state("user"),
    "operations": [Operation(PATH, Policy(effects="atomic", wait_seconds=0))],
}


def ask(fellow: Any, writes_of: Callable[[Any], Any], handler: Writing) -> Response:
    """One request to an application that answers 201 once ``handler`` has returned.

    Raises what the application, or Semel in its place, raises: a server makes a 500 of that.
    """
    sent = head(KEY, [], [b"{}"])
    if fellow.runner is None:

        def application(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
            at_once(handler(writes_of(environ["semel.permit"])))
            start_response("201 Created", [("Content-Type", "text/plain")])
            yield b"paid"

        made = WsgiMiddleware(application, fellow.engine, **SETTINGS)
        return wsgi_call(made, wsgi_environ("POST", PATH, "", sent, b"{}", ALICE))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await handler(writes_of(scope["semel.permit"]))
        start = {"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"text/plain")]}
        await send(start)
        await send({"type": "http.response.body", "body": b"paid"})

    async def call() -> Response:
        middleware = SemelMiddleware(app, fellow.engine, **SETTINGS)
        try:
            return await asgi_call(middleware, asgi_scope("POST", PATH, "", sent, ALICE), [b"{}"])
        finally:
            await middleware.close()

    response: Response = fellow.runner.run(call())
    return response


def check_retryable(answer: Response) -> None:
    """It says that the same request may be sent again at once, and points nowhere."""
    assert (answer.status, answer.code) == (503, "IDEMPOTENCY_STORE_UNAVAILABLE"), answer.body
    document = json.loads(answer.body)
    assert (document["retryable"], document["keyAction"]) == (True, "keep")
    assert answer.header("retry-after") is not None
    assert "operation" not in document
    assert answer.link() is None
