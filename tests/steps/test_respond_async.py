"""``Prefer: respond-async``: 202 and a link at once, and an end even where the server that accepted it is killed."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from semel import AsyncEngine, AsyncPermit, Engine, Policy
from semel.client import Answered
from semel.core.model import State
from semel.http.asgi.middleware import SemelMiddleware
from semel.http.caller import Caller, single_caller
from semel.http.routing import Operation
from semel.integrations.fastapi import Semel as FastApiSemel
from semel.integrations.starlette import Semel
from semel.resuming.asgi import ResumedApp, completer_for
from semel.resuming.worker import Completer
from tests.steps.serving import SHIP, application
from tests.web.driving import Response as Got
from tests.web.driving import asgi_call, asgi_scope

ASYNC = [("Idempotency-Key", "order-number-1"), ("Prefer", "respond-async"), ("Content-Type", "text/plain")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "semel.db"
    with closing(Engine.connect(f"sqlite:///{made}")) as engine:
        engine.migrate()
    return made


def state_of(path: Path) -> str:
    """The state of the newest record."""
    with closing(sqlite3.connect(path)) as connection:
        [(state,)] = connection.execute("SELECT state FROM semel_record ORDER BY seq DESC LIMIT 1")
    return State(state).name


class Gate:
    """An application that continues on a signal."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.opens = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.opens.wait()
        await self._app(scope, receive, send)


async def ask(app: Any, headers: list[tuple[str, str]] = ASYNC) -> Got:
    return await asgi_call(app, asgi_scope("POST", "/ship", "", headers, None), [b"parcel"])


async def first_message(app: Any) -> tuple[asyncio.Task[Any], dict[str, Any], bytes]:
    """Ask, and return as soon as an answer has been sent: the handler is still at it."""
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    pieces = [{"type": "http.request", "body": b"parcel", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not pieces:
            await asyncio.Event().wait()
        return pieces.pop()

    task = asyncio.ensure_future(app(asgi_scope("POST", "/ship", "", ASYNC, None), receive, sent.put))
    start, body = await sent.get(), await sent.get()
    return task, start, body["body"]


def surfaces(engine: AsyncEngine, log: Path) -> Iterator[tuple[Any, Gate]]:
    """The same application, declared at the middleware and at its endpoint."""
    gate = Gate(application(str(log), stays=False))
    declared = [Operation("/ship", SHIP, name="ship")]
    yield SemelMiddleware(gate, engine, caller=single_caller, operations=declared), gate
    semel = Semel(engine, caller=single_caller)

    async def ship(request: Request, permit: AsyncPermit = Semel.permit) -> Response:
        await route_gate.opens.wait()
        await permit.step("ship", lambda: "shipped", repeat=True)
        return PlainTextResponse("shipped", 201)

    route_gate = Gate(None)
    app = Starlette(routes=[Route("/ship", semel.command("ship-2", SHIP)(ship), methods=["POST"])])
    semel.install(app)
    yield app, route_gate


def test_the_client_gets_a_status_link_and_the_answer_later(path: Path, tmp_path: Path) -> None:
    async def story() -> None:
        async with AsyncEngine.connect(f"sqlite:///{path}") as engine:
            for app, gate in surfaces(engine, tmp_path / "effects"):
                task, start, body = await first_message(app)
                headers = dict(start["headers"])
                link = json.loads(body)["operation"]
                assert json.loads(body)["state"] == state_of(path)
                assert start["status"] == 202
                assert headers[b"preference-applied"] == b"respond-async"
                assert headers[b"location"].decode() == link
                assert not task.done()
                again = await ask(app)
                assert (again.status, again.header("location")) == (202, link)
                plain = await ask(app, [ASYNC[0], ASYNC[2]])  # a client that would wait, and has waited
                assert (plain.status, plain.header("preference-applied")) == (202, None)
                for answer in (again, plain):  # which the client does not take for the command's own answer
                    assert Answered(answer.status, {"content-type": "application/json"}, answer.body).is_accepted
                    assert json.loads(answer.body)["state"] == state_of(path)
                gate.opens.set()
                await task
                ended = await ask(app)
                assert (ended.status, ended.body, ended.replayed) == (201, b"shipped", True)

    asyncio.run(story())


def test_without_the_preference_the_client_waits_for_the_answer(path: Path, tmp_path: Path) -> None:
    async def story() -> None:
        async with AsyncEngine.connect(f"sqlite:///{path}") as engine:
            app, gate = next(surfaces(engine, tmp_path / "effects"))
            gate.opens.set()
            got = await ask(app, [ASYNC[0], ASYNC[2]])
            assert (got.status, got.body, got.header("preference-applied")) == (201, b"shipped", None)

    asyncio.run(story())


def test_the_preference_is_ignored_without_a_completer(path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async def story() -> None:
        async with AsyncEngine.connect(f"sqlite:///{path}") as engine:
            declared = [Operation("/ship", Policy(), name="ship")]
            got = await ask(SemelMiddleware(app, engine, caller=single_caller, operations=declared))
            assert (got.status, got.body) == (201, b"done")

    asyncio.run(story())


def test_a_kept_request_holds_no_credential_and_runs_an_endpoint_again(path: Path) -> None:
    seen: list[tuple[bytes, str | None, str | None]] = []

    async def story() -> None:
        async with AsyncEngine.connect(f"sqlite:///{path}") as engine:
            semel = Semel(engine, caller=single_caller)

            async def ship(request: Request, permit: AsyncPermit = Semel.permit) -> Response:
                assert (
                    str(request.url) == "https://shop.example/ship"
                )  # otherwise a middleware that checks hosts would answer
                seen.append((await request.body(), request.headers.get("authorization"), request.headers.get("accept")))
                await permit.step("note", lambda: None, repeat=True)
                if permit.attempt == 1:
                    raise ConnectionError("away")
                return PlainTextResponse("shipped", 201)

            app = Starlette(routes=[Route("/ship", semel.command("ship", SHIP)(ship), methods=["POST"])])
            semel.install(app)

            async def tls(scope: Any, receive: Any, send: Any) -> None:
                await app({**scope, "scheme": "https"}, receive, send)

            sent = [("Authorization", "Bearer secret"), ("Accept", "text/plain"), ("Host", "shop.example")]
            with pytest.raises(ConnectionError):
                await ask(tls, [*ASYNC[::2], *sent])
            completer = Completer(engine)
            completer.register("ship", SHIP, ResumedApp(app, semel.surface.route("ship", SHIP)))
            assert await completer.run_once() == 1
            ended = await ask(app, ASYNC[::2])
            assert (ended.status, ended.body, ended.replayed) == (201, b"shipped", True)

    asyncio.run(story())
    assert seen == [(b"parcel", "Bearer secret", "text/plain"), (b"parcel", None, "text/plain")]


def test_the_middleware_marks_a_run_without_its_client_and_no_other_request(path: Path) -> None:
    seen: list[tuple[bool, bool]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        permit = scope["semel.permit"]  # of every command: it is no sign that a login may be skipped
        seen.append(("semel.permit" in scope, "semel.resumed" in scope))
        await permit.step("note", lambda: None, repeat=True)
        if permit.attempt == 1:
            raise ConnectionError("away")
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"shipped"})

    async def story() -> None:
        async with AsyncEngine.connect(f"sqlite:///{path}") as engine:
            surface = SemelMiddleware(
                app, engine, caller=single_caller, operations=[Operation("/ship", SHIP, name="ship")]
            )
            with pytest.raises(ConnectionError):
                await ask(surface, [ASYNC[0], ASYNC[2], ("semel.resumed", "1")])
            completer = Completer(engine)
            route = surface.surface.routes.find("POST", "/ship")
            assert route is not None
            completer.register("ship", SHIP, ResumedApp(app, route[0], claims=False))
            assert await completer.run_once() == 1

    asyncio.run(story())
    assert seen == [(True, False), (True, True)]


def who(request: Request) -> str:
    if "semel.resumed" in request.scope:
        return f"for {request.scope['semel.permit'].command.scope.caller}"
    if "user" not in request.headers:
        raise HTTPException(401)
    return request.headers["user"]


User = Annotated[str, Depends(who)]


def test_a_dependency_that_authenticates_lets_a_run_without_its_client_pass(path: Path) -> None:
    seen: list[str] = []

    async def story() -> None:
        async with AsyncEngine.connect(f"sqlite:///{path}") as engine:
            app, semel = FastAPI(), FastApiSemel(engine, caller=lambda request: Caller("acme", request.headers["user"]))

            @app.post("/ship", status_code=201)
            @semel.command("ship", SHIP)
            async def ship(user: User, permit: AsyncPermit = semel.permit) -> str:
                seen.append(user)
                await permit.step("note", lambda: None, repeat=True)
                if permit.attempt == 1:
                    raise ConnectionError("away")
                return "shipped"

            semel.install(app)
            headers = [*ASYNC[::2], ("User", "alice")]
            with pytest.raises(ConnectionError):
                await ask(app, headers)
            completer = completer_for(engine, app, [each.route for each in semel.declared.values()])
            assert completer is not None
            assert await completer.run_once() == 1
            assert (await ask(app, headers)).replayed

    asyncio.run(story())
    assert seen == ["alice", "for alice"]  # asked before the claim whether it would be reached, it did not run


# --- real servers -----------------------------------------------------------------------------------


@contextmanager
def serve_app(path: Path, log: Path, mode: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "tests.steps.serving", str(path), str(log), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def post(port: int, *, wait: int | None = None) -> tuple[int, str | None, bytes]:
    """Ask for it; ``wait`` is how long the server may take to find out."""
    headers = dict(ASYNC)
    if wait is not None:
        headers["Prefer"] = f"respond-async, wait={wait}"
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("POST", "/ship", b"parcel", headers)
        got = connection.getresponse()
        return got.status, got.getheader("location"), got.read()


def test_an_accepted_command_finishes_although_its_server_is_killed(path: Path, tmp_path: Path) -> None:
    log = tmp_path / "effects"
    with serve_app(path, log, "stays") as (server, port):
        status, link, _ = post(port)
        assert (status, server.stdout.readline() if server.stdout else "") == (202, "shipping\n")
        server.send_signal(signal.SIGKILL)
        server.wait()
    with serve_app(path, log, "goes") as (_, port):
        for _ in range(20):  # each waits in the server until the command has ended, or for a second
            status, again, body = post(port, wait=1)
            if status != 202:
                break
            assert again == link
    assert (status, body) == (201, b"shipped")
    charge, ship = log.read_text().splitlines()
    assert charge == "charge"  # by the server that was killed, and never again
    assert ship.startswith("ship parcel ")


def test_another_command_with_the_same_business_reference_gets_no_202(path: Path, tmp_path: Path) -> None:
    """The holder of the reference may yet fail; a 202 would promise an end without a worker for it."""

    async def story() -> None:
        async with AsyncEngine.connect(f"sqlite:///{path}") as engine:
            gate = Gate(application(str(tmp_path / "effects"), stays=False))
            declared = [Operation("/ship", replace(SHIP, reference_from="body:/ref"), name="ship")]
            app = SemelMiddleware(gate, engine, caller=single_caller, operations=declared)

            async def send(key: str) -> Got:
                headers = [("Idempotency-Key", key), ("Prefer", "respond-async"), ("Content-Type", "application/json")]
                return await asgi_call(app, asgi_scope("POST", "/ship", "", headers, None), [b'{"ref": "INV-7"}'])

            first = asyncio.create_task(send("order-number-1"))
            while not engine.core.live:  # noqa: ASYNC110 - of the engine's own
                await asyncio.sleep(0)
            other = await send("order-number-2")
            assert (other.status, other.header("retry-after") is not None) == (409, True)
            assert (await send("order-number-1")).status == 202
            gate.opens.set()
            assert (await first).status == 202

    asyncio.run(story())


def test_an_error_page_does_not_settle_a_resumed_execution(path: Path) -> None:
    """Neither if the client gets 202, nor if a completer runs the endpoint again."""
    raises = [ValueError("of which a handler makes a page")] * 2

    async def story() -> None:
        async with AsyncEngine.connect(f"sqlite:///{path}") as engine:
            semel = Semel(engine, caller=single_caller)

            async def ship(request: Request, permit: AsyncPermit = Semel.permit) -> Response:
                await permit.step("charge", lambda: "charged")
                if raises:
                    raise raises.pop()
                return PlainTextResponse("shipped", 201)

            def sorry(request: Request, error: Exception) -> Response:
                return PlainTextResponse("sorry", 200)

            route = Route("/ship", semel.command("ship", SHIP)(ship), methods=["POST"])
            app = Starlette(routes=[route], exception_handlers={ValueError: sorry})
            semel.install(app, complete=False)
            assert (await ask(app)).status == 202
            completer = completer_for(engine, app, [semel.declared["ship"].route])
            assert completer is not None
            assert await completer.run_once() == 0
            completer = completer_for(engine, app, [semel.declared["ship"].route])  # which has not seen it fail
            assert completer is not None
            assert await completer.run_once() == 1
            ended = await ask(app)
            assert (ended.status, ended.body, ended.replayed) == (201, b"shipped", True)

    asyncio.run(story())
