"""One application at two places: each place's request is a command of its own, and neither gets the other's answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from flask import Flask
from litestar import Litestar, post
from quart import Quart
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from semel import AsyncBulk, AsyncEngine, Engine
from semel.http.asgi.middleware import SemelMiddleware as AsgiMiddleware
from semel.http.caller import single_caller
from semel.http.routing import Operation
from semel.http.wsgi.middleware import SemelMiddleware as WsgiMiddleware
from semel.integrations import fastapi, flask, litestar, quart, starlette
from semel.policy import Policy

REUSED = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
OPERATIONS = [Operation("/payments", Policy(effects="idempotent"))]
HEADERS = {"Idempotency-Key": "a-payment-of-may", "Content-Type": "application/json"}
Asked = tuple[int, str | None, bool, int]  # status, code, whether it was replayed, effects so far
done: list[int] = []


# --- applications: each counts its effects --------------------------------------------------------


def asgi_middleware(engine: Any, paths: Any) -> Any:
    async def create(request: Request) -> PlainTextResponse:
        done.append(1)
        return PlainTextResponse("paid", 201)

    app = Starlette(routes=[Route("/payments", create, methods=["POST"])])
    return AsgiMiddleware(app, engine, caller=single_caller, operations=OPERATIONS)


def on_starlette(engine: Any, paths: Any) -> Any:
    semel = starlette.Semel(engine, caller=single_caller)

    @semel.command("payments.create", effects="idempotent", paths=paths)
    async def create(request: Request) -> PlainTextResponse:
        done.append(1)
        return PlainTextResponse("paid", 201)

    app = Starlette(routes=[Route("/payments", create, methods=["POST"])])
    semel.install(app)
    return app


def on_fastapi(engine: Any, paths: Any) -> Any:
    app, semel = FastAPI(), fastapi.Semel(engine, caller=single_caller)

    @app.post("/payments")
    @semel.command("payments.create", effects="idempotent", paths=paths)
    async def create() -> str:
        done.append(1)
        return "paid"

    semel.install(app)
    return app


def on_litestar(engine: Any, paths: Any) -> Any:
    semel = litestar.Semel(engine, caller=single_caller)

    @post("/payments")
    @semel.command("payments.create", effects="idempotent", paths=paths)
    async def create() -> str:
        done.append(1)
        return "paid"

    return Litestar([create], plugins=[semel])


def on_quart(engine: Any, paths: Any) -> Any:
    app = Quart(__name__)
    semel = quart.Semel(app, engine, caller=single_caller)

    @app.post("/payments")
    @semel.command("payments.create", effects="idempotent", paths=paths)
    async def create() -> str:
        done.append(1)
        return "paid"

    return app


def a_bulk(engine: Any, paths: Any) -> Any:
    async def take(item: Any) -> None:
        done.append(1)

    semel = starlette.Semel(engine, caller=single_caller)
    answer = semel.bulk(AsyncBulk(engine, operation="imports"), take).answer
    app = Starlette(routes=[Route("/payments", answer, methods=["POST"])])
    semel.install(app)
    return app


def wsgi_middleware(engine: Any, paths: Any) -> Any:
    app = Flask(__name__)

    @app.post("/payments")
    def create() -> str:
        done.append(1)
        return "paid"

    return WsgiMiddleware(app.wsgi_app, engine, caller=single_caller, operations=OPERATIONS)


def on_flask(engine: Any, paths: Any) -> Any:
    app = Flask(__name__)
    semel = flask.Semel(app, engine, caller=single_caller)

    @app.post("/payments")
    @semel.command("payments.create", effects="idempotent", paths=paths)
    def create() -> str:
        done.append(1)
        return "paid"

    return app


def flask_bulk(engine: Any, paths: Any) -> Any:
    def take(item: Any) -> None:
        done.append(1)

    app = Flask(__name__)
    semel = flask.Semel(app, engine, caller=single_caller)
    app.add_url_rule("/payments", "list", semel.bulk("imports", take).answer, methods=["POST"])
    return app


ASYNC = [asgi_middleware, on_starlette, on_fastapi, on_litestar, on_quart, a_bulk]
SYNC = [wsgi_middleware, on_flask, flask_bulk]
DECLARED = [on_starlette, on_fastapi, on_litestar, on_quart, on_flask]


# --- places -----------------------------------------------------------------------------------


def mount(app: Any) -> Any:
    """By Starlette, which says what the server's own root was."""
    return Starlette(routes=[Mount("/eu", app), Mount("/us", app), Mount("/", app)])


def dispatch(app: Any) -> Any:
    """By a server that gives only the root."""

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        root = next((each for each in ("/eu", "/us") if path.startswith(f"{each}/")), "")
        await app({**scope, "root_path": root}, receive, send)

    return outer


Ask = Callable[[str], Asked]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Ask]]:
    """Serves an application at several places, and asks it."""
    url = f"sqlite:///{tmp_path}/app.db"
    with closing(Engine.connect(url)) as plain:
        plain.migrate()
    done.clear()
    with ExitStack() as ends:

        def make_ask(make: Any, place: Any = mount, paths: Any = None) -> Ask:
            if make in SYNC:
                app = make(ends.enter_context(Engine.connect(url)), paths)
                client = Client(DispatcherMiddleware(app, {"/eu": app, "/us": app}))
                return lambda path: _summarize(client.post(path, data=b"[1]", headers=HEADERS))
            outer = place(make(AsyncEngine.connect(url), paths))

            def ask(path: str, root: str = "") -> Asked:
                client = TestClient(outer, root_path=root)
                return _summarize(client.post(root + path, content=b"[1]", headers=HEADERS))

            return ask

        yield make_ask


def _summarize(answer: Any) -> Asked:
    told = answer.headers
    return answer.status_code, told.get("Semel-Code"), told.get("Idempotency-Replayed") == "true", len(done)


EVERYWHERE = [*((make, place) for make in ASYNC for place in (mount, dispatch)), *((make, None) for make in SYNC)]


@pytest.mark.parametrize(("make", "place"), EVERYWHERE)
def test_another_mount_point_does_not_get_the_answer_of_the_first(
    serve: Callable[..., Ask], make: Any, place: Any
) -> None:
    ask = serve(make, place)
    status, _, replayed, effects = ask("/eu/payments")
    assert (status < 300, replayed, effects) == (True, False, 1)
    assert ask("/us/payments") == (422, REUSED, False, 1)
    assert ask("/payments") == (422, REUSED, False, 1)
    assert ask("/eu/payments")[2:] == (True, 1)


@pytest.mark.parametrize("make", DECLARED)
def test_mount_points_declared_as_one_share_their_answers(serve: Callable[..., Ask], make: Any) -> None:
    ask = serve(make, paths="one")
    assert ask("/eu/payments")[2:] == (False, 1)
    assert ask("/us/payments")[2:] == (True, 1)


@pytest.mark.parametrize("make", ASYNC)
def test_a_proxys_prefix_does_not_count_where_starlette_knows_it(serve: Any, make: Any) -> None:
    """A proxy's prefix may change between two releases: the same mount is the same command."""
    ask = serve(make)
    assert ask("/eu/payments")[2:] == (False, 1)
    assert ask("/eu/payments", root="/api")[2:] == (True, 1)
