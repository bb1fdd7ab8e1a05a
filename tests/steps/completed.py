"""Applications and functions for `semel worker --complete`: each on the store that the environment names.

As a program: a WSGI server that accepts one command and stays in its second step.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any
from wsgiref.simple_server import make_server

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from semel import AsyncEngine, AsyncPermit, Engine, Permit, Policy
from semel.functions import command, single_caller, this_permit
from semel.http.asgi.middleware import SemelMiddleware
from semel.http.routing import Operation
from semel.http.wsgi.middleware import SemelMiddleware as WsgiMiddleware
from semel.integrations.starlette import Semel

SHIP = Policy(steps=True, resumable=True, lease_seconds=1, wait_seconds=0)
DECLARED = [Operation("/ship", SHIP, name="ship")]
STAYS = "--stays" in sys.argv


def url() -> str:
    return os.environ["SHOP_URL"]


def engine() -> Engine:
    return Engine.connect(url())


def loops() -> AsyncEngine:
    return AsyncEngine.connect(url())


# --- WSGI -------------------------------------------------------------------------------------------


def make_wsgi() -> Any:
    def ship() -> None:
        print("shipping" if STAYS else "shipped", flush=True)
        if STAYS:
            threading.Event().wait()

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["semel.permit"].step("ship", ship, repeat=True)
        start_response("201 Shipped", [("Content-Type", "text/plain")])
        return [b"shipped ", environ["wsgi.input"].read()]

    return WsgiMiddleware(app, engine(), caller=single_caller, operations=DECLARED, serve_operations=True)


# --- ASGI -------------------------------------------------------------------------------------------


async def away(permit: AsyncPermit) -> None:
    """The first run has no luck."""
    await permit.step("note", lambda: None, repeat=True)
    if permit.attempt == 1:
        raise ConnectionError("away")


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[dict[str, str]]:
    print("the application has begun")
    yield {"place": "hall 7"}
    print("the application has ended")


def make_starlette(*, guarded: bool = False, **options: Any) -> Starlette:
    """Endpoints that claim for themselves, one of them mounted; ``guarded`` by what knows no completer."""
    semel = Semel(loops(), caller=single_caller)

    async def ship(request: Request, permit: AsyncPermit = Semel.permit) -> Response:
        await away(permit)
        return PlainTextResponse(f"{request.state.place} {request.url.path}", 201)

    async def guard(request: Request, call_next: Any) -> Response:
        if "authorization" not in request.headers:
            return Response("who are you?", 404)
        answer: Response = await call_next(request)
        return answer

    routes = [
        Route("/ship", semel.command("ship", SHIP)(ship), methods=["POST"]),
        Mount("/v1", routes=[Route("/ship", semel.command("mounted", SHIP)(ship), methods=["POST"])]),
    ]
    guards = [Middleware(BaseHTTPMiddleware, dispatch=guard)] if guarded else []
    app = Starlette(routes=routes, lifespan=lifespan, middleware=guards)
    semel.install(app, **options)
    return app


def make_guarded() -> Starlette:
    return make_starlette(guarded=True)


def make_middleware(**options: Any) -> Any:
    """An application inside the middleware, without a lifespan."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise RuntimeError("there is nothing to start")
        await away(scope["semel.permit"])
        body = (await receive())["body"]
        place = scope["root_path"].encode() + b" " + scope["path"].encode()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": body + b" " + place})

    return SemelMiddleware(app, loops(), caller=single_caller, operations=DECLARED, **options)


def make_broken() -> Starlette:
    @asynccontextmanager
    async def breaks(app: Any) -> AsyncIterator[None]:
        if app is not None:
            raise RuntimeError("no such hall")
        yield

    return Starlette(lifespan=breaks)


# --- functions --------------------------------------------------------------------------------------


@command(engine, "deliver", key="number", caller=single_caller, steps=True, resumable=True)
def deliver(number: int, permit: Permit = this_permit) -> str:
    permit.step("note", lambda: None, repeat=True)
    if permit.attempt < 3:
        raise ConnectionError(f"parcel {number}")
    return "delivered"


if __name__ == "__main__":
    with make_server("127.0.0.1", 0, make_wsgi()) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
