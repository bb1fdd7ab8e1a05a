"""Starlette: the same promises on plain endpoints, on methods of endpoint classes, under mounts and by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.endpoints import HTTPEndpoint
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, Router, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket

from semel import AsyncEngine, Permit
from semel.errors import ConfigurationError
from semel.http.caller import from_state, from_user
from semel.integrations.starlette import Semel
from tests.integrations.conftest import Serve
from tests.integrations.driving import both, caller_of, noting, refuses

REUSED = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"


async def plain(request: Request, permit: Permit = Semel.permit) -> Response:
    return PlainTextResponse(f"{permit.attempt} {len(await request.body())}")


def plain_sync(request: Request, permit: Permit = Semel.permit) -> Response:
    return PlainTextResponse(f"{permit.attempt} {request.headers['content-length']}")


async def with_more(more: str, request: Request, permit: Permit = Semel.permit) -> Response:
    return PlainTextResponse(f"{permit.attempt} {len(await request.body())}{more}")


class Instance:
    async def __call__(self, request: Request, permit: Permit = Semel.permit) -> Response:
        return await plain(request, permit)

    def sync(self, request: Request, permit: Permit = Semel.permit) -> Response:
        return plain_sync(request, permit)


def pass_through(endpoint: Any) -> Any:
    @functools.wraps(endpoint)
    def passing(*args: Any, **kwargs: Any) -> Any:
        return endpoint(*args, **kwargs)  # not async itself; what it returns is awaitable

    return passing


ENDPOINTS = [
    (lambda: plain, b"1 3"),
    (lambda: plain_sync, b"1 3"),
    (lambda: functools.partial(with_more, "!"), b"1 3!"),
    (Instance, b"1 3"),
    (lambda: Instance().sync, b"1 3"),
    (lambda: pass_through(plain), b"1 3"),
]


@pytest.mark.parametrize(("make", "body"), ENDPOINTS)
def test_an_endpoint_may_be_anything_that_starlette_calls(
    serve: Serve, engine: AsyncEngine, make: Callable[[], Any], body: bytes
) -> None:
    semel = Semel(engine, caller=caller_of)
    app = Starlette(routes=[Route("/", semel.command("it")(make()), methods=["POST"])])
    semel.install(app)
    web = serve(app, engine)
    first, _ = both(web, "/", b"abc")
    assert (first.status, first.body) == (200, body)
    assert web.call("/", b"abd").code == REUSED
    assert web.call("/", b"abc", caller="bob").body == body


@pytest.mark.parametrize("sync", [False, True])
def test_a_method_of_an_endpoint_class_is_a_command(serve: Serve, engine: AsyncEngine, sync: bool) -> None:
    semel = Semel(engine, caller=caller_of)

    def post_sync(self: Any, request: Request, permit: Permit = semel.permit) -> Response:
        return PlainTextResponse(f"{type(self).__name__} {permit.attempt}")

    async def post_async(self: Any, request: Request, permit: Permit = semel.permit) -> Response:
        return post_sync(self, request, permit)

    command = semel.command("payments.create")

    class Payments(HTTPEndpoint):
        async def get(self, request: Request) -> Response:
            return PlainTextResponse("none")

        post = command(post_sync) if sync else command(post_async)

    app = Starlette(routes=[Route("/", Payments)])
    semel.install(app)
    web = serve(app, engine)
    first, _ = both(web, "/", b"abc")
    assert first.body == b"Payments 1"
    assert web.call("/", method="GET").body == b"none"
    assert web.call("/", method="PUT").status == 405


def test_an_impossible_command_is_refused_when_it_is_declared(engine: AsyncEngine) -> None:
    semel = Semel(engine, caller=caller_of)

    class Payments(HTTPEndpoint):
        pass

    async def generator(request: Request) -> Any:
        yield b""

    assert "declare its method" in refuses(lambda: semel.command("a")(Payments))
    assert "StreamingResponse" in refuses(lambda: semel.command("b")(generator))
    assert "who is calling?" in refuses(lambda: Semel(engine))
    assert "did you mean 'key_header'" in refuses(lambda: Semel(engine, caller=caller_of, key_heder="Key"))  # type: ignore[call-arg]


def _mount(endpoint: Any) -> Starlette:
    return Starlette(routes=[Mount("/outer", routes=[Mount("/inner", app=Router([_route(endpoint)]))])])


def _applications(endpoint: Any) -> Starlette:
    return Starlette(routes=[Mount("/outer", app=Starlette(routes=[Mount("/inner", routes=[_route(endpoint)])]))])


def _route(endpoint: Any) -> Route:
    return Route("/{number:int}", endpoint, methods=["POST"])


@pytest.mark.parametrize("place", [_mount, _applications])
def test_a_command_may_be_mounted(serve: Serve, engine: AsyncEngine, place: Callable[[Any], Starlette]) -> None:
    semel = Semel(engine, caller=caller_of)
    app = place(semel.command("it")(plain))
    semel.install(app)
    web = serve(app, engine)
    both(web, "/outer/inner/7", b"abc")
    assert web.call("/outer/inner/007", b"abc").replayed  # the router's number is the parameter, not its spelling
    assert web.call("/outer/inner/8", b"abc").code == REUSED
    assert web.call("/outer/inner/seven", b"abc").status == 404


def test_an_application_inside_may_install_it_too(serve: Serve, engine: AsyncEngine) -> None:
    """Only the outermost capture takes part; the engine is opened by the one application that is served."""
    semel = Semel(engine, caller=caller_of)
    inner = Starlette(routes=[Route("/", semel.command("it")(plain), methods=["POST"])])
    app = Starlette(routes=[Mount("/inner", app=inner)])
    semel.install(inner)
    semel.install(app)
    both(serve(app, engine), "/inner/", b"abc")


def test_a_refusal_of_the_endpoints_own_decorators_is_never_recorded(serve: Serve, engine: AsyncEngine) -> None:
    semel = Semel(engine, caller=caller_of)

    def check_body(endpoint: Any) -> Any:
        @functools.wraps(endpoint)
        async def checking(request: Request) -> Any:
            if await request.body() != b"good":
                raise HTTPException(422)
            return await endpoint(request)

        return checking

    app = Starlette(routes=[Route("/", check_body(semel.command("it")(plain)), methods=["POST"])])
    semel.install(app)
    web = serve(app, engine)
    assert (web.call("/", b"evil").status, web.records()) == (422, [])
    first, _ = both(web, "/", b"good")
    assert first.body == b"1 4"


def test_the_user_of_starlettes_authentication_is_the_caller(serve: Serve, engine: AsyncEngine) -> None:
    class User(SimpleUser):
        @property
        def identity(self) -> str:
            return self.username

    class Backend(AuthenticationBackend):
        async def authenticate(self, connection: Any) -> Any:
            name = connection.headers.get("authorization", "").removeprefix("Bearer ")
            return (AuthCredentials(), User(name)) if name else None

    semel = Semel(engine, caller=from_user())
    authentication = Middleware(AuthenticationMiddleware, backend=Backend())
    routes = [Route("/", semel.command("it")(plain), methods=["POST"])]
    app = Starlette(routes=routes, middleware=[authentication])
    semel.install(app)
    web = serve(app, engine)
    both(web, "/", b"abc")
    assert not web.call("/", b"abc", caller="bob").replayed
    assert web.call("/", b"abc", caller=None).code == "IDEMPOTENCY_CALLER_UNKNOWN"


def test_the_caller_may_come_from_the_requests_state(serve: Serve, engine: AsyncEngine) -> None:
    semel = Semel(engine, caller=from_state("user"))

    def set_caller(endpoint: Any) -> Any:
        @functools.wraps(endpoint)
        async def identifying(request: Request) -> Any:
            request.state.user = request.headers["authorization"]
            return await endpoint(request)

        return identifying

    app = Starlette(routes=[Route("/", set_caller(semel.command("it")(plain)), methods=["POST"])])
    semel.install(app)
    both(serve(app, engine), "/", b"abc")


def test_without_install_a_command_fails_loudly(serve: Serve, engine: AsyncEngine) -> None:
    semel = Semel(engine, caller=caller_of)
    web = serve(Starlette(routes=[Route("/", semel.command("it")(plain), methods=["POST"])]), engine)
    assert web.call("/", b"abc").status == 500
    assert isinstance(web.raised, ConfigurationError)
    assert "semel.install(app)" in str(web.raised)


def test_lifespans_nest_and_websockets_pass(engine: AsyncEngine) -> None:
    notes: list[str] = []
    semel = Semel(engine, caller=caller_of)

    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        await websocket.close()

    app = Starlette(routes=[WebSocketRoute("/socket", talk)], lifespan=lambda _: noting(notes, "up", "down"))
    semel.install(app)
    with TestClient(app) as client, client.websocket_connect("/socket") as socket:
        socket.send_text("hello")
        assert (socket.receive_text(), notes) == ("hello", ["up"])
    assert notes == ["up", "down"]


@pytest.mark.parametrize(
    "body", [b"{", b"\xff", b'["\\ud800"]', b"NaN", b"[" * 3000 + b"]" * 3000], ids=lambda body: str(body[:9])
)
def test_a_body_that_the_endpoint_could_not_read_claims_nothing(serve: Serve, engine: AsyncEngine, body: bytes) -> None:
    semel = Semel(engine, caller=caller_of)

    @semel.command("read")
    async def read(request: Request) -> Response:
        return JSONResponse(await request.json())

    app = Starlette(routes=[Route("/", read, methods=["POST"])])
    semel.install(app)
    web = serve(app, engine)
    answer = web.call("/", body, headers=[("Content-Type", "application/json")])
    assert (answer.status, web.records(), web.raised) == (413 if body[:2] == b"[[" else 400, [], None)
    assert web.call("/", {"a": 1}).status == 200  # with the same key
