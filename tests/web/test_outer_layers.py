"""Layers outside of Semel that end before the handler does, and say so in words of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from semel.core.model import State
from semel.engine.async_engine import AsyncEngine
from semel.http.asgi.middleware import SemelMiddleware
from semel.http.caller import single_caller
from semel.http.routing import Operation
from semel.integrations.fastapi import Semel
from semel.policy import Policy
from tests.web.driving import ALICE, BODY, KEY, Message, asgi_call, asgi_scope, head

App = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]
PATIENCE_SECONDS = 20


class Stage:
    """A protected handler that waits, with ``BaseHTTPMiddleware`` further outside, and a server to be cut off."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.entered = asyncio.Event()
        self.finish = asyncio.Event()
        self.reported: list[dict[str, Any]] = []
        self.chunks = [b"paid"]
        self.close: Callable[[], Awaitable[None]]
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: self.reported.append(context))

    def around(self) -> App:
        """The middleware around an ASGI application."""

        async def app(scope: Any, receive: Any, send: Any) -> None:
            self.entered.set()
            await self.finish.wait()
            await send({"type": "http.response.start", "status": 201, "headers": []})
            for chunk in self.chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        operations = [Operation("/payments", Policy(answer_bytes_max=100))]
        web = SemelMiddleware(app, self.engine, caller=single_caller, operations=operations)
        self.close = web.close
        return BaseHTTPMiddleware(web, _pass_on)

    def inside(self) -> App:
        """The capture around a FastAPI application whose endpoint claims."""
        semel = Semel(self.engine, caller=single_caller)
        app = FastAPI()

        @app.post("/payments", status_code=201)
        @semel.command("pay", effects="external", answer_bytes_max=100)
        async def pay() -> Response:
            self.entered.set()
            await self.finish.wait()

            async def body() -> Any:
                for chunk in self.chunks:
                    yield chunk

            return StreamingResponse(body(), 201)

        @app.post("/plain", status_code=201)
        async def plain() -> str:
            self.entered.set()
            await self.finish.wait()
            return "no command"

        semel.install(app, reap=False)
        app.add_middleware(BaseHTTPMiddleware, dispatch=_pass_on)
        self.close = semel._kept_alive.close
        return app

    @property
    def states(self) -> list[State]:
        return [State(row.state) for row in self.engine.backend.driver._table.rows()]


async def _pass_on(request: Request, call_next: Any) -> Any:
    return await call_next(request)


async def _refuse(message: Message) -> None:
    raise AssertionError(f"{message} was sent to nobody")


async def staying() -> Message:
    """What a server's receive returns to a listener for a disconnect that does not come."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


def make_post() -> tuple[dict[str, Any], Callable[[], Awaitable[Message]]]:
    """A request and its body."""
    left = [{"type": "http.request", "body": BODY, "more_body": False}]

    async def receive() -> Message:
        return left.pop() if left else await staying()

    return asgi_scope("POST", "/payments", "", head(KEY, [], [BODY]), ALICE), receive


def run(test: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncEngine.connect("memory://") as engine, asyncio.timeout(PATIENCE_SECONDS):
            await test(Stage(engine))

    asyncio.run(main())


WAYS = pytest.mark.parametrize("way", ["around", "inside"])
LONG = [b"x" * 80] * 5


@WAYS
@pytest.mark.parametrize("chunks", [[b"paid"], LONG], ids=["held", "streamed"])
def test_an_outer_layer_that_is_cancelled_leaves_no_error(way: str, chunks: list[bytes]) -> None:
    async def test(stage: Stage) -> None:
        stage.chunks = chunks
        app: App = getattr(stage, way)()
        scope, receive = make_post()
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        server = asyncio.create_task(app(scope, receive, send))
        await stage.entered.wait()
        server.cancel()
        await asyncio.wait([server])
        assert server.cancelled()
        stage.finish.set()
        await stage.close()
        assert (sent, stage.reported, stage.states) == ([], [], [State.SUCCEEDED])
        again = await asgi_call(app, make_post()[0], [BODY])
        assert (again.status, again.replayed) == ((201, True) if chunks is not LONG else (409, False))

    run(test)


def test_a_cancelled_unprotected_request_is_not_reported() -> None:
    async def test(stage: Stage) -> None:
        app = stage.inside()
        scope, receive = make_post()
        server = asyncio.create_task(app({**scope, "path": "/plain"}, receive, _refuse))
        await stage.entered.wait()
        server.cancel()
        await asyncio.wait([server])
        stage.finish.set()
        await stage.close()
        assert (stage.reported, stage.states) == ([], [])

    run(test)


@WAYS
@pytest.mark.parametrize("chunks", [[b"paid"], LONG], ids=["held", "streamed"])
@pytest.mark.parametrize("broken_at", [1, 2, 3])
def test_a_disconnect_while_the_answer_is_sent_leaves_no_error(way: str, chunks: list[bytes], broken_at: int) -> None:
    async def test(stage: Stage) -> None:
        stage.chunks = chunks
        app: App = getattr(stage, way)()
        scope, receive = make_post()
        left = broken_at

        async def send(message: Message) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise ConnectionResetError

        stage.finish.set()
        server = asyncio.create_task(app({**scope, "asgi": {"spec_version": "2.4"}}, receive, send))
        await asyncio.wait([server])
        await stage.close()  # and no handler waits for ever for a layer that has ended
        assert (stage.reported, stage.states) == ([], [State.SUCCEEDED])

    run(test)
