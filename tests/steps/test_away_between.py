"""A store outage between two steps: the client is asked to retry, and the finished steps are not repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from fastapi import FastAPI
from flask import Flask

from semel import AsyncEngine, AsyncPermit, Engine, Permit, Policy
from semel.errors import StoreUnavailable
from semel.http.asgi.middleware import SemelMiddleware
from semel.http.caller import single_caller
from semel.http.routing import Operation
from semel.http.wsgi.middleware import SemelMiddleware as WsgiMiddleware
from semel.integrations.fastapi import Semel as FastApiSemel
from semel.integrations.flask import Semel as FlaskSemel
from tests.web.driving import Response, asgi_scope, response_of, wsgi_call, wsgi_environ

SHIP = Policy(steps=True, wait_seconds=0)
DECLARED = [Operation("/ship", SHIP, name="ship")]
HEADERS = [("Idempotency-Key", "order-number-1"), ("Content-Type", "text/plain"), ("Content-Length", "6")]


class Downstream:
    """What the steps call. In the first run the store is unavailable after the first step."""

    def __init__(self, *, repeat: bool = True) -> None:
        self.calls: list[str] = []
        self.repeat = repeat
        self.error: Exception = StoreUnavailable("db1.internal is away")

    def fail_once(self, permit: Permit) -> None:
        if permit.attempt == 1:
            raise self.error

    def ship(self, permit: Permit) -> None:
        permit.step("charge", lambda: self.calls.append("charge"), repeat=self.repeat)
        self.fail_once(permit)
        permit.step("mail", lambda: self.calls.append("mail"), repeat=True)

    async def ship_async(self, permit: AsyncPermit) -> None:
        await permit.step("charge", lambda: self.calls.append("charge"), repeat=self.repeat)
        self.fail_once(permit)
        await permit.step("mail", lambda: self.calls.append("mail"), repeat=True)


def fastapi(engine: AsyncEngine, downstream: Downstream) -> Any:
    app, semel = FastAPI(), FastApiSemel(engine, caller=single_caller)

    @app.post("/ship", status_code=201)
    @semel.command("ship", SHIP)
    async def ship(permit: AsyncPermit = semel.permit) -> str:
        await downstream.ship_async(permit)
        return "shipped"

    semel.install(app)
    return app


def asgi(engine: AsyncEngine, downstream: Downstream) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await downstream.ship_async(scope["semel.permit"])
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"shipped"})

    return SemelMiddleware(app, engine, caller=single_caller, operations=DECLARED)


def flask(engine: Engine, downstream: Downstream) -> Any:
    app = Flask("shop")
    semel = FlaskSemel(app, engine, caller=lambda: "alice")

    @app.post("/ship")
    @semel.command("ship", SHIP)
    def ship() -> tuple[str, int]:
        downstream.ship(semel.permit)
        return "shipped", 201

    return app


def wsgi(engine: Engine, downstream: Downstream) -> Any:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        downstream.ship(environ["semel.permit"])
        start_response("201 Created", [])
        return [b"shipped"]

    return WsgiMiddleware(app, engine, caller=single_caller, operations=DECLARED)


Ask = Callable[[], Awaitable[Response]]
Story = Callable[[Ask], Awaitable[None]]


async def on_loop(make: Callable[..., Any], url: str, downstream: Downstream, story: Story) -> None:
    with closing(Engine.connect(url)) as migrating:
        migrating.migrate()
    async with AsyncEngine.connect(url) as engine:
        app = make(engine, downstream)

        async def ask() -> Response:
            sent: list[Any] = []
            pieces = [{"type": "http.request", "body": b"parcel"}]

            async def receive() -> Any:
                return pieces.pop() if pieces else {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                sent.append(message)

            with suppress(StoreUnavailable, OSError):  # for the server's log, once the answer has left
                await app(asgi_scope("POST", "/ship", "", HEADERS, None), receive, send)
            return response_of(sent)

        await story(ask)


def lossless(app: Any) -> Callable[..., Iterable[bytes]]:
    """The application, without what it raises for the server's log once its answer has left."""

    def call_and_close(environ: Any, start_response: Any) -> Iterable[bytes]:
        pieces = app(environ, start_response)
        whole = list(pieces)
        with suppress(StoreUnavailable):
            getattr(pieces, "close", lambda: None)()
        return whole

    return call_and_close


async def in_threads(make: Callable[..., Any], url: str, downstream: Downstream, story: Story) -> None:
    with closing(Engine.connect(url)) as engine:
        engine.migrate()
        app = make(engine, downstream)

        async def ask() -> Response:
            environ = wsgi_environ("POST", "/ship", "", HEADERS, b"parcel", None)
            setup_testing_defaults(environ)
            return await asyncio.to_thread(wsgi_call, lossless(app), environ)

        await story(ask)


SURFACES = [(on_loop, fastapi), (on_loop, asgi), (in_threads, flask), (in_threads, wsgi)]
EACH = pytest.mark.parametrize(("run", "make"), SURFACES, ids=["fastapi", "asgi", "flask", "wsgi"])


@EACH
def test_the_client_is_asked_to_retry(run: Any, make: Callable[..., Any], tmp_path: Path) -> None:
    downstream = Downstream()

    async def story(ask: Ask) -> None:
        away = await ask()
        assert (away.status, away.problem["code"]) == (503, "IDEMPOTENCY_STORE_UNAVAILABLE")
        assert (away.problem["retryable"], away.problem["mayHaveHappened"]) == (True, True)
        assert away.header("retry-after") is not None
        assert away.link() is not None
        assert b"db1" not in away.body
        again = await ask()
        assert again.status == 201

    asyncio.run(run(make, f"sqlite:///{tmp_path}/shop.db", downstream, story))
    assert downstream.calls == ["charge", "mail"]


@pytest.mark.parametrize("repeat", [True, False])
def test_another_error_is_the_applications_own(repeat: bool, tmp_path: Path) -> None:
    downstream = Downstream(repeat=repeat)
    downstream.error = OSError("the disk is full")

    async def story(ask: Ask) -> None:
        assert (await ask()).status == 500

    asyncio.run(on_loop(fastapi, f"sqlite:///{tmp_path}/shop.db", downstream, story))
