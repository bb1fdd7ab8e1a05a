"""What only ASGI has: messages, tasks, disconnects, cancellation, lifespan, and the order of settling and sending."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from semel.engine.aio import AsyncEngine
from semel.errors import ConfigurationError
from semel.model import State
from semel.policy import Policy
from semel.web.asgi import SemelMiddleware
from semel.web.caller import from_state, from_user, single_caller
from semel.web.routing import Operation
from tests.web.driving import ALICE, BODY, KEY, Message, Response, asgi_call, asgi_scope, head, response_of

App = Callable[[Any, Any, Any], Awaitable[None]]


def scope_of(key: str = KEY, **more: Any) -> dict[str, Any]:
    return {**asgi_scope("POST", "/payments", "", head(key, [], [BODY]), ALICE), **more}


def on_a_loop(test: Callable[[AsyncEngine], Coroutine[Any, Any, None]]) -> None:
    """Run a test with an open engine on a loop of its own."""

    async def main() -> None:
        async with AsyncEngine.connect("memory://") as engine:
            await test(engine)

    asyncio.run(main())


def protect(app: App, engine: AsyncEngine, policy: Policy | None = None, **settings: Any) -> SemelMiddleware:
    settings.setdefault("caller", from_state("user"))
    return SemelMiddleware(app, engine, operations=[Operation("/payments", policy or Policy())], **settings)


def states(engine: AsyncEngine) -> list[State]:
    return [State(row.state) for row in engine.backend.driver._table.records.values()]


async def call(app: App, key: str = KEY) -> Response:
    return await asgi_call(app, scope_of(key), [BODY])


async def answer(send: Any, body: bytes = b"paid", status: int = 201) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})


class Client:
    """A client that stays connected until it is told to go, and notes what reached it and when."""

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


# --- settle, then send ---


def test_the_answer_leaves_when_the_call_has_returned_and_is_settled() -> None:
    async def test(engine: AsyncEngine) -> None:
        log: list[str] = []
        client = Client()
        client.on_send = lambda message: log.append(f"sent {states(engine)[0].name}")

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await answer(send)
            await asyncio.sleep(0)
            log.append(f"committed {states(engine)[0].name}")

        await protect(app, engine)(scope_of(), client.receive, client.send)
        assert log == ["committed PROCESSING", "sent SUCCEEDED", "sent SUCCEEDED"]

    on_a_loop(test)


def test_the_own_error_page_leaves_and_the_exception_goes_on() -> None:
    async def test(engine: AsyncEngine) -> None:
        client = Client()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await answer(send, b"oops", 500)
            raise ValueError("seen by the log")

        with pytest.raises(ValueError, match="seen by the log"):
            await protect(app, engine)(scope_of(), client.receive, client.send)
        first = response_of(client.sent)
        assert (first.status, first.body) == (500, b"oops")
        assert first.header("link") is not None
        assert states(engine) == [State.UNKNOWN]

    on_a_loop(test)


def test_parallel_duplicates_have_one_effect_and_one_answer() -> None:
    async def test(engine: AsyncEngine) -> None:
        entered, finish = asyncio.Event(), asyncio.Event()
        effects = 0

        async def app(scope: Any, receive: Any, send: Any) -> None:
            nonlocal effects
            effects += 1
            entered.set()
            await finish.wait()
            await answer(send, b"effect %d" % effects)

        web = protect(app, engine)
        calls = [asyncio.create_task(call(web)) for _ in range(20)]
        await entered.wait()
        await settle_down()
        finish.set()
        answers = await asyncio.gather(*calls)
        assert {(reply.status, reply.body) for reply in answers} == {(201, b"effect 1")}
        assert sum(reply.replayed for reply in answers) == 19
        assert effects == 1

    on_a_loop(test)


@pytest.mark.parametrize("prefer", [b"wait=0", b"respond-async, wait=0"])
def test_a_duplicate_that_does_not_wait_is_told_so_at_once(prefer: bytes) -> None:
    async def test(engine: AsyncEngine) -> None:
        entered, finish = asyncio.Event(), asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            entered.set()
            await finish.wait()
            await answer(send)

        web = protect(app, engine)
        first = asyncio.create_task(call(web))
        await entered.wait()
        scope = scope_of()
        scope["headers"].append((b"prefer", prefer))
        told = await asgi_call(web, scope, [BODY])
        assert (told.status, told.code) == (409, "IDEMPOTENCY_REQUEST_IN_PROGRESS")
        assert 1 <= told.problem["retryAfter"] <= 30
        finish.set()
        assert (await first).status == 201

    on_a_loop(test)


def test_preferred_waiting_is_bounded() -> None:
    async def test(engine: AsyncEngine) -> None:
        asked: list[float | None] = []
        claim = engine.claim

        async def noting(command: Any, *, wait_seconds: float | None = None) -> Any:
            asked.append(wait_seconds)
            return await claim(command)

        engine.claim = noting  # type: ignore[method-assign]

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await answer(send)

        web = protect(app, engine, wait_seconds_max=7)
        for prefer in (b"wait=3", b'wait="5"', b"wait=100", b"x;wait=9", b"a, WAIT=1;b=2, wait=6"):
            scope = scope_of()
            scope["headers"].append((b"prefer", prefer))
            await asgi_call(web, scope, [BODY])
        assert asked == [3, 5, 7, None, 1]

    on_a_loop(test)


# --- clients that go away ---


def test_a_client_that_goes_away_changes_nothing() -> None:
    async def test(engine: AsyncEngine) -> None:
        entered, finish = asyncio.Event(), asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            told = asyncio.create_task(receive())
            entered.set()
            await finish.wait()
            assert not told.done()  # it was not told that its client has gone
            await answer(send)
            assert (await told)["type"] == "http.disconnect"

        web = protect(app, engine)
        client = Client()
        server = asyncio.create_task(web(scope_of(), client.receive, client.send))
        await entered.wait()
        client.gone.set()
        server.cancel()  # as Hypercorn, Daphne or an outer middleware do
        with pytest.raises(asyncio.CancelledError):
            await server
        finish.set()
        await web.close()
        assert states(engine) == [State.SUCCEEDED]
        assert (await call(web)).replayed

    on_a_loop(test)


def test_an_answer_that_nobody_takes_is_kept() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await answer(send)

        async def broken(message: Message) -> None:
            raise ConnectionResetError

        web = protect(app, engine)
        await web(scope_of(), Client().receive, broken)
        assert (await call(web)).replayed

    on_a_loop(test)


def test_what_a_handler_raises_after_its_client_has_gone_is_reported() -> None:
    async def test(engine: AsyncEngine) -> None:
        entered, finish = asyncio.Event(), asyncio.Event()
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))

        async def app(scope: Any, receive: Any, send: Any) -> None:
            entered.set()
            await finish.wait()
            raise ValueError("nobody listens")

        web = protect(app, engine)
        client = Client()
        server = asyncio.create_task(web(scope_of(), client.receive, client.send))
        await entered.wait()
        server.cancel()
        await asyncio.wait([server])
        finish.set()
        await web.close()
        await settle_down()
        assert [str(context["exception"]) for context in reported] == ["nobody listens"]
        assert states(engine) == [State.UNKNOWN]

    on_a_loop(test)


def test_a_client_that_goes_away_before_its_body_is_complete_has_said_nothing() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            raise AssertionError("not called")

        for pieces in ([], [{"type": "http.request", "body": b"{", "more_body": True}]):
            messages = [*pieces, {"type": "http.disconnect"}]

            async def receive(messages: list[Any] = messages) -> Any:
                return messages.pop(0)

            client = Client()
            await protect(app, engine)(scope_of(), receive, client.send)
            assert client.sent == []
        assert states(engine) == []

    on_a_loop(test)


def test_a_long_answer_goes_on_without_its_client() -> None:
    async def test(engine: AsyncEngine) -> None:
        produced = 0

        async def app(scope: Any, receive: Any, send: Any) -> None:
            nonlocal produced
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(5):
                await send({"type": "http.response.body", "body": b"x" * 50, "more_body": True})
                produced += 1
            await send({"type": "http.response.body"})

        client = Client()

        def break_off(message: Message) -> None:
            if message["type"] == "http.response.body":
                raise BrokenPipeError

        client.on_send = break_off
        await protect(app, engine, Policy(answer_bytes_max=100))(scope_of(), client.receive, client.send)
        assert produced == 5
        assert states(engine) == [State.SUCCEEDED]

    on_a_loop(test)


def test_an_endless_answer_learns_that_its_client_has_gone() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            headers = [(b"content-type", b"text/event-stream")]
            await receive()
            told = asyncio.create_task(receive())
            await asyncio.sleep(0)
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while not told.done():
                await send({"type": "http.response.body", "body": b"data: x\n\n", "more_body": True})
                await asyncio.sleep(0)

        client = Client()
        client.on_send = lambda message: client.gone.set() if len(client.sent) > 3 else None
        await protect(app, engine)(scope_of(), client.receive, client.send)
        assert states(engine) == [State.SUCCEEDED]

    on_a_loop(test)


def test_past_its_deadline_a_handler_may_know() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            scope["semel.permit"].deadline_monotonic = 0
            assert (await receive())["type"] == "http.disconnect"
            await answer(send)

        async def impatient(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)

        client = Client()
        client.gone.set()
        web = protect(impatient, engine)
        claim = engine.claim

        async def overdue(command: Any, *, wait_seconds: float | None = None) -> Any:
            permit: Any = await claim(command)
            permit.deadline_monotonic = 0.0
            return permit

        engine.claim = overdue  # type: ignore[method-assign]
        await web(scope_of(), client.receive, client.send)
        assert client.asked == 1

    on_a_loop(test)


# --- superseded and stopped handlers ---


def test_a_superseded_idempotent_handler_is_cancelled_and_its_caller_told_what_holds() -> None:
    async def test(engine: AsyncEngine) -> None:
        entered = asyncio.Event()
        ended: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled")

        web = protect(app, engine, Policy(effects="idempotent"))
        first = asyncio.create_task(call(web))
        await entered.wait()
        table = engine.backend.driver._table
        [row] = table.records.values()
        table.put(row._replace(fence=row.fence + 1, nonce=b"somebody else's!"))
        [permit] = engine.core.live.values()
        permit.lose()
        told = await first
        assert told.code == "IDEMPOTENCY_REQUEST_IN_PROGRESS"
        assert ended == ["cancelled"]

    on_a_loop(test)


def test_a_handler_that_is_lost_after_it_ended_is_left_alone() -> None:
    async def test(engine: AsyncEngine) -> None:
        permits: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            permits.append(scope["semel.permit"])
            await answer(send)

        web = protect(app, engine, Policy(effects="idempotent"))
        assert (await call(web)).status == 201
        permits[0].lose()
        assert (await call(web)).replayed

    on_a_loop(test)


def test_an_atomic_answer_that_cannot_be_kept_is_rolled_back(tmp_path: Any) -> None:
    async def main() -> None:
        engine = AsyncEngine.connect(f"sqlite:///{tmp_path}/semel.db")
        await engine.migrate()
        async with engine:
            lengths = iter([200, 200, 50])

            async def app(scope: Any, receive: Any, send: Any) -> None:
                await answer(send, b"x" * next(lengths))

            web = protect(app, engine, Policy(effects="atomic", answer_bytes_max=100))
            client = Client()
            for _ in range(2):
                with pytest.raises(Exception, match="answer_bytes_max"):
                    await web(scope_of(), client.receive, client.send)
                refused = response_of(client.sent)
                assert (refused.status, refused.code) == (500, "IDEMPOTENCY_ANSWER_TOO_LARGE")
                client = Client()
            assert (await call(web)).status == 201
            assert (await call(web)).replayed

    asyncio.run(main())


def test_an_atomic_handler_ends_at_its_deadline(tmp_path: Any) -> None:
    async def main() -> None:
        engine = AsyncEngine.connect(f"sqlite:///{tmp_path}/semel.db")
        await engine.migrate()
        async with engine:
            entered = 0

            async def app(scope: Any, receive: Any, send: Any) -> None:
                nonlocal entered
                entered += 1
                if entered == 1:
                    await asyncio.Event().wait()
                await answer(send)

            web = protect(app, engine, Policy(effects="atomic"))
            claim = engine.claim

            async def overdue(command: Any, *, wait_seconds: float | None = None) -> Any:
                permit: Any = await claim(command)
                if not entered:
                    permit.deadline_monotonic = 0.0
                return permit

            engine.claim = overdue  # type: ignore[method-assign]
            with pytest.raises(TimeoutError):
                await call(web)
            assert (await call(web)).status == 201  # nothing had happened

    asyncio.run(main())


def test_atomic_operations_need_a_store_that_has_transactions() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None: ...

        with pytest.raises(ConfigurationError, match="atomic"):
            protect(app, engine, Policy(effects="atomic"))

    on_a_loop(test)


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
        assert start == {"type": "http.response.start", "status": 201, "headers": [(b"a", b"b")]}
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

        async def opened() -> None:
            calls.append("open")
            await opening()

        async def closed() -> None:
            calls.append("close")
            await closing()

        engine.open, engine.close = opened, closed  # type: ignore[method-assign]
        server = Lifespan()
        web = protect(app, engine, manage_engine=True)
        await web({"type": "lifespan"}, server.receive, server.send)
        assert server.sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        assert calls == ["open", "close"]

    asyncio.run(main())


def test_a_failing_start_is_not_hidden() -> None:
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


def test_a_wrong_order_is_seen_where_it_can_be() -> None:
    async def test(engine: AsyncEngine) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await answer(send)

        caller = from_user("username")
        with pytest.raises(ConfigurationError, match="outside AuthenticationMiddleware"):
            protect(AuthenticationMiddleware(app, backend=Backend()), engine, caller=caller)
        right = AuthenticationMiddleware(protect(app, engine, caller=caller), backend=Backend())
        assert (await call(right)).status == 201

    on_a_loop(test)
