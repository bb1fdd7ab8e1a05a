"""What ASGI servers and applications do around a request: messages, mounts, lifespan, tasks, a wrong order."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from semel.core.model import State
from semel.engine.async_engine import AsyncEngine
from semel.errors import ConfigurationError
from semel.http.caller import from_user, single_caller
from tests.web.asgi_calls import App, Client, answer, call, on_a_loop, protect, scope_of, settle_down, states
from tests.web.driving import Message, response_of

# --- messages ---


def test_only_what_can_be_captured_is_offered_to_the_application() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            assert scope["extensions"] == {"http.response.debug": {}}
            await send({"type": "http.response.debug", "info": {}})
            await send({"type": "http.response.early_hint", "links": []})
            await send(
                {"type": "http.response.start", "status": 201, "headers": iter([(b"a", b"b")]), "trailers": True}
            )
            await send({"type": "http.response.body", "body": b"pa", "more_body": True})
            await send({"type": "http.response.body", "body": b"id"})
            await send({"type": "http.response.body", "body": b"too much"})
            await send({"type": "http.response.trailers", "headers": [(b"x", b"y")]})

        extensions: dict[str, Any] = {
            "http.response.pathsend": {},
            "http.response.trailers": {},
            "http.response.debug": {},
        }
        client = Client()
        scope = scope_of(extensions=extensions, state=None)
        await protect(app, engine, caller=single_caller)(scope, client.receive, client.send)
        debug, start, body = client.sent
        assert debug["type"] == "http.response.debug"
        assert (start["type"], start["status"]) == ("http.response.start", 201)
        assert start["headers"][0] == (b"a", b"b")
        assert body["body"] == b"paid"

    on_a_loop(test)


@pytest.mark.parametrize("kinds", [["body"], ["start", "start"]])
def test_messages_in_the_wrong_order_are_the_applications_error(kinds: list[str]) -> None:
    async def test(engine: AsyncEngine) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            for kind in kinds:
                await send({"type": f"http.response.{kind}", "status": 201, "headers": [], "body": b""})

        with pytest.raises(RuntimeError):
            await call(protect(app, engine))
        assert states(engine) == [State.UNKNOWN]

    on_a_loop(test)


def test_a_mounted_application_is_matched_below_its_root() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await answer(send)

        web = protect(app, engine)
        for path, root, stored in (("/api/payments", "/api", 1), ("/apipayments", "/api", 1), ("/payments", "/api", 1)):
            client = Client()
            await web(scope_of(path=path, root_path=root), client.receive, client.send)
            assert len(states(engine)) == stored

    on_a_loop(test)


def test_a_websocket_passes_through() -> None:
    async def test(engine: AsyncEngine) -> None:
        seen: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.append(scope["type"])

        client = Client()
        await protect(app, engine)({"type": "websocket", "path": "/payments"}, client.receive, client.send)
        await protect(app, engine)({"type": "lifespan"}, client.receive, client.send)
        assert seen == ["websocket", "lifespan"]

    on_a_loop(test)


# --- servers ---


def test_under_uvicorn_no_task_is_added() -> None:
    async def test(engine: AsyncEngine) -> None:
        tasks: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            tasks.append(asyncio.current_task())
            await answer(send)

        web = protect(app, engine)
        for key in ("key-one", "key-two"):
            client = Client()
            cycle: Any = RequestResponseCycle.__new__(RequestResponseCycle)
            cycle.receive, cycle.send = client.receive, client.send
            cycle.scope, cycle.response_started, cycle.response_complete = scope_of(key), True, True
            cycle.disconnected, cycle.on_response = False, lambda: None
            server = asyncio.create_task(cycle.run_asgi(web))
            await server
            assert tasks.pop() is server
            assert response_of(client.sent).status == 201
        await call(web, "key-three")
        assert tasks.pop() is not asyncio.current_task()

    on_a_loop(test)


def test_no_request_leaves_a_cycle_behind() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await answer(send)

        web = protect(app, engine)
        await call(web)
        gc.collect()
        gc.disable()
        try:
            await call(web, "another-key")
            await settle_down()
            found = [kept for kept in gc.get_objects() if type(kept).__name__ == "DeclaredCall"]
            assert found == []
        finally:
            gc.enable()

    on_a_loop(test)


class Lifespan:
    """A server's side of the lifespan protocol."""

    def __init__(self) -> None:
        self.events = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
        self.sent: list[str] = []

    async def receive(self) -> Message:
        return self.events.pop(0)

    async def send(self, message: Message) -> None:
        self.sent.append(message["type"])


async def with_lifespan(scope: Any, receive: Any, send: Any) -> None:
    assert (await receive())["type"] == "lifespan.startup"
    await send({"type": "lifespan.startup.complete"})
    assert (await receive())["type"] == "lifespan.shutdown"
    await send({"type": "lifespan.shutdown.complete"})


async def without_lifespan(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"


@pytest.mark.parametrize("app", [with_lifespan, without_lifespan])
def test_the_engine_lives_as_long_as_the_application(app: App) -> None:
    async def main() -> None:
        engine = AsyncEngine.connect("memory://")
        calls: list[str] = []
        opening, closing = engine.open, engine.close

        async def note_open() -> None:
            calls.append("open")
            await opening()

        async def note_close() -> None:
            calls.append("close")
            await closing()

        engine.open, engine.close = note_open, note_close  # type: ignore[method-assign]
        server = Lifespan()
        web = protect(app, engine, manage_engine=True)
        await web({"type": "lifespan"}, server.receive, server.send)
        assert server.sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        assert calls == ["open", "close"]

    asyncio.run(main())


def test_the_application_ends_after_the_handlers_whose_clients_have_gone() -> None:
    async def main() -> None:
        done: list[str] = []
        running, go = asyncio.Event(), asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                await receive()
                await send({"type": "lifespan.startup.complete"})
                await receive()
                done.append("application")
                await send({"type": "lifespan.shutdown.complete"})
                return
            running.set()
            await go.wait()
            done.append("handler")
            await answer(send)

        web = protect(app, AsyncEngine.connect("memory://"), manage_engine=True)
        server, events = Lifespan(), asyncio.Queue[Message]()
        events.put_nowait({"type": "lifespan.startup"})
        life = asyncio.create_task(web({"type": "lifespan"}, events.get, server.send))
        calling = asyncio.create_task(call(web))
        await running.wait()
        calling.cancel()  # the client has gone
        await asyncio.gather(calling, return_exceptions=True)
        events.put_nowait({"type": "lifespan.shutdown"})
        await settle_down()
        go.set()
        await life
        assert done == ["handler", "application"]

    asyncio.run(main())


def test_a_failing_startup_is_reported() -> None:
    async def main() -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            raise ValueError("cannot start")

        server = Lifespan()
        with pytest.raises(ValueError, match="cannot start"):
            await protect(app, AsyncEngine.connect("memory://"), manage_engine=True)(
                {"type": "lifespan"}, server.receive, server.send
            )

    asyncio.run(main())


class Backend(AuthenticationBackend):
    async def authenticate(self, conn: Any) -> tuple[AuthCredentials, SimpleUser]:
        return AuthCredentials(), SimpleUser("alice")


def test_a_wrong_middleware_order_is_detected_where_possible() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await answer(send)

        caller = from_user("username")
        with pytest.raises(ConfigurationError, match="outside AuthenticationMiddleware"):
            protect(AuthenticationMiddleware(app, backend=Backend()), engine, caller=caller)
        right = AuthenticationMiddleware(protect(app, engine, caller=caller), backend=Backend())
        assert (await call(right)).status == 201

    on_a_loop(test)
