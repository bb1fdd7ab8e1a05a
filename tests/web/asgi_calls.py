"""What the tests of ASGI have in common: a protected application, a client that can go away, and what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from semel.core.model import State
from semel.engine.async_engine import AsyncEngine
from semel.http.asgi.middleware import SemelMiddleware
from semel.http.caller import from_state
from semel.http.routing import Operation
from semel.policy import Policy
from tests.web.driving import ALICE, BODY, KEY, Message, Response, asgi_call, asgi_scope, head

App = Callable[[Any, Any, Any], Awaitable[None]]


def scope_of(key: str = KEY, **more: Any) -> dict[str, Any]:
    return {**asgi_scope("POST", "/payments", "", head(key, [], [BODY]), ALICE), **more}


def on_a_loop(test: Callable[[AsyncEngine], Coroutine[Any, Any, None]]) -> None:
    """Run a test with an open engine on its own loop."""

    async def main() -> None:
        async with AsyncEngine.connect("memory://") as engine:
            await test(engine)

    asyncio.run(main())


def protect(app: App, engine: AsyncEngine, policy: Policy | None = None, **settings: Any) -> SemelMiddleware:
    settings.setdefault("caller", from_state("user"))
    return SemelMiddleware(app, engine, operations=[Operation("/payments", policy or Policy())], **settings)


def states(engine: AsyncEngine) -> list[State]:
    return [State(row.state) for row in engine.backend.driver._table.rows()]


async def call(app: App, key: str = KEY) -> Response:
    return await asgi_call(app, scope_of(key), [BODY])


async def answer(send: Any, body: bytes = b"paid", status: int = 201) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})


class Client:
    """A client that stays connected until a signal, and records what reached it and when."""

    def __init__(self, pieces: tuple[bytes, ...] = (BODY,)) -> None:
        self._pieces = list(pieces)
        self.gone = asyncio.Event()
        self.sent: list[Message] = []
        self.asked = 0
        self.on_send: Callable[[Message], None] = lambda message: None

    async def receive(self) -> Message:
        if self._pieces:
            piece = self._pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}
        self.asked += 1
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.on_send(message)
        self.sent.append(message)


async def settle_down(turns: int = 50) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
