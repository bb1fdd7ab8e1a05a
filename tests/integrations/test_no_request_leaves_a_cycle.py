"""No request leaves objects that only the collector finds, and one that no command takes costs no task."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from semel.engine.async_engine import AsyncEngine
from semel.http.asgi.middleware import SemelMiddleware
from semel.http.caller import single_caller
from semel.http.routing import Operation
from semel.integrations.fastapi import Semel
from semel.integrations.starlette import Semel as StarletteSemel
from semel.policy import Policy
from tests.web.driving import ALICE, BODY, asgi_scope, head

App = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]
ROUNDS = 20


def effects_of(path: str) -> Any:
    return "idempotent" if path == "/fail-again" else "external"


class Stage:
    """Three surfaces with a command, one that fails, one that waits, and a route that is not a command."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any] | None] = []
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()
        self.close: Callable[[], Coroutine[Any, Any, None]]

    async def pay(self, request: Request) -> Response:
        self.tasks.append(asyncio.current_task())
        return Response(b"paid", 201)

    async def refuse(self, request: Request) -> Response:
        raise HTTPException(409)

    async def fail(self, request: Request) -> Response:
        raise ValueError("it fails")

    async def wait(self, request: Request) -> Response:
        self.entered.set()
        await self.gate.wait()
        return Response(b"late", 201)

    def fastapi(self, engine: AsyncEngine) -> App:
        app = FastAPI()
        router = APIRouter()

        def add(path: str, endpoint: Any) -> None:
            async def handle(request: Request) -> Response:
                answer: Response = await endpoint(request)
                return answer

            if path != "/plain":
                handle = semel.command(path, effects=effects_of(path))(handle)
            router.post(path)(handle)

        semel = Semel(engine, caller=single_caller)
        self._add_all(add)
        app.include_router(router, prefix="/v1")
        semel.install(app, reap=False)
        self.close = semel._kept_alive.close
        return app

    def starlette(self, engine: AsyncEngine) -> App:
        semel = StarletteSemel(engine, caller=single_caller)
        routes: list[Route] = []

        def add(path: str, endpoint: Any) -> None:
            declared = endpoint if path == "/plain" else semel.command(path, effects=effects_of(path))(endpoint)
            routes.append(Route(path, declared, methods=["POST"]))

        self._add_all(add)
        app = Starlette(routes=[Mount("/v1", routes=routes)])
        semel.install(app, reap=False)
        self.close = semel._kept_alive.close
        return app

    def middleware(self, engine: AsyncEngine) -> App:
        routes: list[Route] = []
        self._add_all(lambda path, endpoint: routes.append(Route(path, endpoint, methods=["POST"])))
        declared = [route.path for route in routes if route.path != "/plain"]
        operations = [Operation(f"/v1{path}", Policy.of(effects=effects_of(path))) for path in declared]
        app = Starlette(routes=[Mount("/v1", routes=routes)])
        web = SemelMiddleware(app, engine, caller=single_caller, operations=operations)
        self.close = web.close
        return web

    def _add_all(self, add: Callable[[str, Any], None]) -> None:
        for path, endpoint in (
            ("/pay", self.pay),
            ("/refuse", self.refuse),
            ("/fail", self.fail),
            ("/fail-again", self.fail),
            ("/wait", self.wait),
            ("/plain", self.pay),
        ):
            add(path, endpoint)


async def ask(app: App, path: str, key: str, body: bytes = BODY) -> int:
    """One request in the caller's own task, as a server that adds none of its own."""
    left = [{"type": "http.request", "body": body, "more_body": False}]
    status = 0

    async def receive() -> Any:
        return left.pop() if left else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    with contextlib.suppress(ValueError):
        await app(asgi_scope("POST", f"/v1{path}", "", head(key, [], [body]), ALICE), receive, send)
    return status


async def fresh(stage: Stage, app: App, n: int) -> int:
    return await ask(app, "/pay", f"fresh-key-{n}")


async def replay(stage: Stage, app: App, n: int) -> int:
    return await ask(app, "/pay", "fresh-key--1")


async def refuse_command(stage: Stage, app: App, n: int) -> int:
    return await ask(app, "/refuse", f"refused-key-{n}")


async def reuse_key(stage: Stage, app: App, n: int) -> int:
    return await ask(app, "/pay", "fresh-key--1", b'{"amount": 6}')


async def keyless(stage: Stage, app: App, n: int) -> int:
    return await ask(app, "/pay", "\x00")


async def run_unprotected(stage: Stage, app: App, n: int) -> int:
    return await ask(app, "/plain", f"plain-key-{n}")


async def fail_command(stage: Stage, app: App, n: int) -> int:
    return await ask(app, "/fail", f"failed-key-{n}")


async def fail_again(stage: Stage, app: App, n: int) -> int:
    return await ask(app, "/fail-again", "failed-key")


async def cancel_request(stage: Stage, app: App, n: int) -> int:
    stage.entered.clear()
    stage.gate.clear()
    server = asyncio.ensure_future(ask(app, "/wait", f"cancelled-key-{n}"))
    await stage.entered.wait()
    server.cancel()
    await asyncio.wait([server])
    stage.gate.set()
    await stage.close()
    return 0


KINDS = {
    fresh: 201,
    replay: 201,
    refuse_command: 409,
    reuse_key: 422,
    keyless: 400,
    run_unprotected: 201,
    fail_command: 500,
    fail_again: 500,
    cancel_request: 0,
}


def left_by(make: str, kind: Any) -> tuple[int, list[str]]:
    """The last status, and what only the collector found of some requests of a kind."""

    async def main() -> tuple[int, list[str]]:
        stage = Stage()
        async with AsyncEngine.connect("memory://") as engine:
            app = getattr(stage, make)(engine)
            await fresh(stage, app, -1)
            for n in range(1000, 1003):
                status = await kind(stage, app, n)
            gc.collect()
            gc.set_debug(gc.DEBUG_SAVEALL)
            try:
                for n in range(ROUNDS):
                    status = await kind(stage, app, n)
                gc.collect()
                found = [type(each).__name__ for each in gc.garbage]
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
        return status, found

    gc.disable()
    gc.collect()
    gc.freeze()  # what is there by now is not looked through again by the two collections within
    try:
        return asyncio.run(main())
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__name__))
@pytest.mark.parametrize("make", ["fastapi", "starlette", "middleware"])
def test_no_request_leaves_a_cycle(make: str, kind: Any) -> None:
    status, found = left_by(make, kind)
    assert (status, found) == (KINDS[kind], [])


@pytest.mark.parametrize("make", ["fastapi", "starlette", "middleware"])
def test_an_unprotected_route_costs_no_task(make: str) -> None:
    async def main() -> None:
        stage = Stage()
        async with AsyncEngine.connect("memory://") as engine:
            app = getattr(stage, make)(engine)
            for n in range(2):
                assert await run_unprotected(stage, app, n) == 201
                assert stage.tasks.pop() is asyncio.current_task()
            assert await fresh(stage, app, 0) == 201  # while a command still outlives its client
            assert stage.tasks.pop() is not asyncio.current_task()

    asyncio.run(main())


def test_a_command_found_at_run_time_is_protected_and_outlives_its_client() -> None:
    """A function that is not a command calls one: no route says so."""

    async def main() -> None:
        tasks: list[Any] = []
        async with AsyncEngine.connect("memory://") as engine:
            semel = StarletteSemel(engine, caller=single_caller)

            @semel.command("hidden")
            async def run_hidden(request: Request) -> Response:
                tasks.append(asyncio.current_task())
                return Response(status_code=201)

            async def caller(request: Request) -> Response:
                answer: Response = await run_hidden(request)
                return answer

            app = Starlette(routes=[Route("/v1/pay", caller, methods=["POST"])])
            semel.install(app, reap=False)
            assert [await ask(app, "/pay", f"hidden-key-{n}") for n in range(2)] == [201, 201]
            assert (tasks[0] is asyncio.current_task(), tasks[1] is asyncio.current_task()) == (True, False)

    asyncio.run(main())


def test_hidden_and_later_routes_are_covered() -> None:
    async def main() -> None:
        async with AsyncEngine.connect("memory://") as engine:
            semel = StarletteSemel(engine, caller=single_caller)
            tasks: list[Any] = []

            @semel.command("late")
            async def late(request: Request) -> Response:
                tasks.append(asyncio.current_task())
                return Response(status_code=201)

            inner = Starlette(routes=[Route("/pay", late, methods=["POST"])])

            async def opaque(scope: Any, receive: Any, send: Any) -> None:
                await inner(scope, receive, send)

            app = Starlette()
            semel.install(app, operations_path=None, reap=False)
            assert await ask(app, "/pay", "late-key-0") == 404
            app.router.routes.append(Mount("/v1", opaque))
            assert await ask(app, "/pay", "late-key-1") == 201
            assert tasks.pop() is not asyncio.current_task()

    asyncio.run(main())
