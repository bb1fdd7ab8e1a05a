"""One ATOMIC operation over HTTP on the engine of a database's tests, of either colour."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterable, Iterator
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
POLICY = Policy(effects="atomic", wait_seconds=0)


def ask(
    fellow: Any,
    writes_of: Callable[[Any], Any],
    handler: Writing,
    *,
    policy: Policy = POLICY,
    raised: list[BaseException] | None = None,
) -> Response:
    """Send one request to an application that answers 201 once ``handler`` has returned.

    Parameters: ``raised`` takes what is raised behind an answer, which a server logs.

    Raises what the application, or Semel in its place, raises without an answer: a server makes a 500 of that.
    """
    sent = head(KEY, [], [b"{}"])
    settings: dict[str, Any] = {"caller": from_state("user"), "operations": [Operation(PATH, policy)]}
    if fellow.runner is None:

        def application(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
            at_once(handler(writes_of(environ["semel.permit"])))
            start_response("201 Created", [("Content-Type", "text/plain")])
            yield b"paid"

        made: Any = WsgiMiddleware(application, fellow.engine, **settings)
        if raised is not None:
            made = _closed_quietly(made, raised)
        return wsgi_call(made, wsgi_environ("POST", PATH, "", sent, b"{}", ALICE))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await handler(writes_of(scope["semel.permit"]))
        start = {"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"text/plain")]}
        await send(start)
        await send({"type": "http.response.body", "body": b"paid"})

    async def call() -> Response:
        middleware = SemelMiddleware(app, fellow.engine, **settings)

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            ended: list[Any] = []

            async def noting(message: Any) -> None:
                ended.append(message)
                await send(message)

            try:
                await middleware(scope, receive, noting)
            except Exception as error:
                if raised is None or not ended:
                    raise
                raised.append(error)

        try:
            return await asgi_call(serve, asgi_scope("POST", PATH, "", sent, ALICE), [b"{}"])
        finally:
            await middleware.close()

    response: Response = fellow.runner.run(call())
    return response


def _closed_quietly(app: Any, raised: list[BaseException]) -> Any:
    """The same application, whose answer's end raises nothing."""

    def run_and_close(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        pieces: Iterable[bytes] = app(environ, start_response)
        yield from pieces
        try:
            pieces.close()  # type: ignore[attr-defined]
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the test's to look at
            raised.append(error)

    return run_and_close


def check_rolled_back(answer: Response) -> None:
    """Check that the answer says that nothing was done and that the same request may be sent again."""
    check_retryable(answer)
    document = json.loads(answer.body)
    assert "mayHaveHappened" not in document
    assert document["detail"].endswith("It was rolled back: nothing was done. Retry with the same key.")


def check_retryable(answer: Response) -> None:
    """Check that the answer says that the same request may be sent again at once, and has no link."""
    assert (answer.status, answer.code) == (503, "IDEMPOTENCY_STORE_UNAVAILABLE"), answer.body
    document = json.loads(answer.body)
    assert (document["retryable"], document["keyAction"]) == (True, "keep")
    assert answer.header("retry-after") is not None
    assert "operation" not in document
    assert answer.link() is None
