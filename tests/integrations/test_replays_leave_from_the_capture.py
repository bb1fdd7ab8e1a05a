"""Semel's own answers are sent from the capture, whatever the application does with them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Route

from semel.engine.async_engine import AsyncEngine
from semel.integrations.fastapi import Semel
from semel.integrations.starlette import Semel as StarletteSemel
from tests.integrations.conftest import Serve
from tests.integrations.driving import caller_of

Next = Callable[[Request], Awaitable[Any]]
Install = Callable[[], None]


async def envelope(request: Request, call_next: Next) -> Response:
    """Wraps each body and adds a link, as an API's own convention may ask for."""
    answer = await call_next(request)
    body = b"".join([piece async for piece in answer.body_iterator])
    headers = {"link": ", ".join(["</next>; rel=next", *answer.headers.getlist("link")])}
    return JSONResponse({"data": json.loads(body)}, answer.status_code, headers)


async def swallow(request: Request, call_next: Next) -> Response:
    answer = await call_next(request)
    return Response(status_code=204) if "idempotency-replayed" in answer.headers else answer


async def stumble(request: Request, call_next: Next) -> Response:
    answer: Response = await call_next(request)
    if "idempotency-replayed" in answer.headers:
        raise ValueError("a middleware that cannot read a replay")
    return answer


class EnvelopeRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        plain = super().get_route_handler()

        async def handle(request: Request) -> Response:
            answer = await plain(request)
            return JSONResponse({"data": json.loads(bytes(answer.body))}, answer.status_code)

        return handle


def fastapi_with(engine: AsyncEngine, middleware: Any = None, route: Any = None, *, inside: bool = True) -> FastAPI:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    if route is not None:
        app.router.route_class = route

    @app.post("/payments", status_code=201)
    @semel.command("pay")
    async def pay(request: Request) -> dict[str, str]:
        return {"id": "pay-1"}

    def add() -> None:
        if middleware is not None:
            app.add_middleware(BaseHTTPMiddleware, dispatch=middleware)

    if inside:
        add()
    semel.install(app)
    if not inside:
        add()
    return app


def starlette_with(engine: AsyncEngine, middleware: Any, *, inside: bool = True) -> Starlette:
    semel = StarletteSemel(engine, caller=caller_of)

    @semel.command("pay")
    async def pay(request: Request) -> Response:
        return JSONResponse({"id": "pay-1"}, 201)

    app = Starlette(routes=[Route("/payments", pay, methods=["POST"])])
    if inside:
        app.add_middleware(BaseHTTPMiddleware, dispatch=middleware)
    semel.install(app)
    if not inside:
        app.add_middleware(BaseHTTPMiddleware, dispatch=middleware)
    return app


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("make", [fastapi_with, starlette_with])
def test_a_replay_behind_an_envelope_is_the_first_answer(
    serve: Serve, engine: AsyncEngine, make: Callable[..., Starlette], inside: bool
) -> None:
    web = serve(make(engine, envelope, inside=inside), engine)
    first, *again = (web.call("/payments", {"amount": 5}) for _ in range(3))
    assert json.loads(first.body) == {"data": {"id": "pay-1"}}
    for replay in again:
        assert (replay.status, replay.body, replay.link("next")) == (201, first.body, first.link("next"))
        assert replay.replayed or not inside  # further outside, the envelope drops the mark itself


def test_a_replay_through_a_route_class_is_the_first_answer(serve: Serve, engine: AsyncEngine) -> None:
    web = serve(fastapi_with(engine, route=EnvelopeRoute), engine)
    first, again = (web.call("/payments", {"amount": 5}) for _ in range(2))
    assert (first.body, again.body, again.replayed) == (b'{"data":{"id":"pay-1"}}', first.body, True)


@pytest.mark.parametrize("make", [fastapi_with, starlette_with])
def test_a_replay_that_a_middleware_swallows_is_sent(
    serve: Serve, engine: AsyncEngine, make: Callable[..., Starlette]
) -> None:
    web = serve(make(engine, swallow), engine)
    first, again = (web.call("/payments", {"amount": 5}) for _ in range(2))
    assert (again.status, again.body, again.replayed) == (201, first.body, True)


@pytest.mark.parametrize("make", [fastapi_with, starlette_with])
def test_a_replay_is_sent_although_the_application_fails_on_it(
    serve: Serve, engine: AsyncEngine, make: Callable[..., Starlette]
) -> None:
    web = serve(make(engine, stumble), engine)
    first, again = (web.call("/payments", {"amount": 5}) for _ in range(2))
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    assert isinstance(web.raised, ValueError)  # and the server hears of it


@pytest.mark.parametrize("make", [fastapi_with, starlette_with])
def test_semels_problem_documents_are_sent_unchanged(
    serve: Serve, engine: AsyncEngine, make: Callable[..., Starlette]
) -> None:
    web = serve(make(engine, envelope), engine)
    web.call("/payments", {"amount": 5})
    assert web.call("/payments", {"amount": 6}).code == "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
    assert web.call("/payments", {"amount": 5}, key=None).code == "MISSING_IDEMPOTENCY_KEY"
    assert web.call("/payments", {"amount": 5}, caller=None).code == "IDEMPOTENCY_CALLER_UNKNOWN"


def test_a_handler_that_listens_for_the_disconnect_of_a_replay_does_not_hang(serve: Serve, engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()

    class Listening:
        """Waits for the end of the request, as an application that releases something with it may."""

        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self.app(scope, receive, send)
            if scope["type"] == "http" and scope["method"] == "POST":
                while (await receive())["type"] != "http.disconnect":
                    pass

    @app.post("/payments")
    @semel.command("pay")
    async def pay(request: Request) -> str:
        return "paid"

    app.add_middleware(Listening)
    semel.install(app)
    web = serve(app, engine)
    first, again = (web.call("/payments", {"amount": 5}) for _ in range(2))
    assert (again.body, again.replayed) == (first.body, True)


# --- unhandled errors ---


@pytest.mark.parametrize("custom", [False, True])
@pytest.mark.parametrize("debug", [False, True])
def test_an_unhandled_500_has_its_operations_link(serve: Serve, engine: AsyncEngine, custom: bool, debug: bool) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI(debug=debug)

    @app.post("/payments")
    @semel.command("pay")
    async def pay() -> None:
        raise ValueError("nobody handles it")

    @app.post("/plain")
    async def plain() -> None:
        raise ValueError("no command")

    def own(request: Request, error: Exception) -> Response:
        return JSONResponse({"own": True}, 500)

    if custom:
        app.add_exception_handler(Exception, own)
    semel.install(app)
    web = serve(app, engine)
    answer = web.call("/payments")
    link = answer.link()
    assert (answer.status, type(web.raised)) == (500, ValueError)
    assert link is not None
    assert answer.header("idempotency-key-lifetime") == "86400"
    assert (answer.body == b'{"own":true}') is (custom and not debug)
    assert json.loads(web.call(link, method="GET").body)["state"] == "UNKNOWN"
    assert web.call("/plain").link() is None


def test_an_unhandled_500_of_a_command_without_an_effect_links_to_its_status(serve: Serve, engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()

    @app.post("/payments")
    @semel.command("pay", nothing_happened=(ValueError,))
    async def pay() -> None:
        raise ValueError("nothing happened")

    semel.install(app)
    web = serve(app, engine)
    answer = web.call("/payments")
    link = answer.link()
    assert (answer.status, link is not None) == (500, True)
    assert json.loads(web.call(link or "", method="GET").body)["state"] == "FAILED_NOT_REPLAYABLE"
