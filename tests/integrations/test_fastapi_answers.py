"""FastAPI, from the handler's return to what the client gets: dependencies, errors, streams and other middleware."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from semel import AsyncEngine, NothingHappened, Permit
from semel.integrations.fastapi import Semel
from tests.integrations.conftest import Serve
from tests.integrations.driving import Web, both, caller_of

UNKNOWN = "IDEMPOTENCY_OUTCOME_UNKNOWN"
NOT_REPLAYABLE = "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE"
REUSED = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"

Endpoint = Callable[..., Any]


class Unreachable(Exception):
    """The provider was not even reached."""


class Moved(Exception):
    """An error with its own status, like an HTTPException."""

    status_code = 303


class Lost(Exception):
    """The outcome is unknown."""


def application(engine: AsyncEngine, endpoint: Endpoint, depends: Any = None, **options: Any) -> FastAPI:
    """An application whose only command is this endpoint, at ``POST /``."""
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    dependencies = [] if depends is None else [Depends(depends)]
    app.post("/", dependencies=dependencies)(semel.command("it", **options)(endpoint))
    app.state.semel = semel
    return app


def protect(serve: Serve, engine: AsyncEngine, endpoint: Endpoint, depends: Any = None, **options: Any) -> Web:
    app = application(engine, endpoint, depends, **options)
    app.state.semel.install(app)
    return serve(app, engine)


# --- dependencies that end after the handler ---


@pytest.mark.parametrize("effects", ["external", "idempotent"])
@pytest.mark.parametrize("scope", ["request", "function"])
@pytest.mark.parametrize("sync", [False, True])
def test_an_answer_whose_commit_fails_afterwards_is_never_stored_as_success(
    serve: Serve, engine: AsyncEngine, sync: bool, scope: Any, effects: str
) -> None:
    ran = []
    fails = [True]

    async def session() -> AsyncIterator[None]:
        yield
        if fails and fails.pop():
            raise RuntimeError("the commit failed")

    def session_sync() -> Iterator[None]:
        yield
        if fails and fails.pop():
            raise RuntimeError("the commit failed")

    async def pay(_: None = Depends(session_sync if sync else session, scope=scope)) -> str:
        ran.append("paid")
        return "paid"

    web = protect(serve, engine, pay, effects=effects)
    first = web.call("/")
    assert (first.status, str(web.raised)) == (500, "the commit failed")
    second = web.call("/")
    if effects == "external":
        assert (second.code, ran, web.states) == (UNKNOWN, ["paid"], ["UNKNOWN"])
    else:  # given back: it is run again, with the same derived keys
        assert (second.status, ran, web.states) == (200, ["paid", "paid"], ["SUCCEEDED"])


def test_a_commit_that_succeeds_is_followed_by_the_settlement_and_only_then_by_the_answer(
    serve: Serve, engine: AsyncEngine
) -> None:
    states: list[list[str]] = []
    webs: list[Web] = []

    async def session() -> AsyncIterator[None]:
        yield
        states.append(webs[0].states)

    async def pay() -> str:
        return "paid"

    webs.append(protect(serve, engine, pay, session))
    assert webs[0].call("/").status == 200
    assert (states, webs[0].states) == ([["PROCESSING"]], ["SUCCEEDED"])


@pytest.mark.parametrize("fails", [False, True])
def test_background_tasks_belong_to_the_command(serve: Serve, engine: AsyncEngine, fails: bool) -> None:
    webs: list[Web] = []
    states: list[list[str]] = []

    def mail() -> None:
        states.append(webs[0].states)
        if fails:
            raise RuntimeError("no mail")

    async def pay(tasks: BackgroundTasks) -> str:
        tasks.add_task(mail)
        return "paid"

    webs.append(protect(serve, engine, pay))
    first, second = webs[0].call("/"), webs[0].call("/")
    assert states == [["PROCESSING"]]
    if fails:
        assert (first.status, second.code) == (500, UNKNOWN)
    else:
        assert (first.status, second.body, second.replayed) == (200, first.body, True)


# --- errors ---


@pytest.mark.parametrize(
    ("status", "effects", "state", "replayed"),
    [
        (400, "external", "FAILED_REPLAYABLE", True),
        (404, "external", "FAILED_REPLAYABLE", True),
        (422, "external", "FAILED_REPLAYABLE", True),
        (409, "idempotent", "FAILED_REPLAYABLE", True),
        (401, "external", "FAILED_NOT_REPLAYABLE", False),
        (403, "external", "FAILED_NOT_REPLAYABLE", False),
        (408, "external", "FAILED_NOT_REPLAYABLE", False),
        (425, "external", "FAILED_NOT_REPLAYABLE", False),
        (429, "idempotent", "PROCESSING", False),
        (503, "idempotent", "PROCESSING", False),
        (500, "external", "UNKNOWN", None),
        (503, "external", "UNKNOWN", None),
    ],
)
def test_an_http_exception_of_the_handler_settles_by_its_status(
    serve: Serve, engine: AsyncEngine, status: int, effects: str, state: str, replayed: bool | None
) -> None:
    ran = []

    async def fail() -> None:
        ran.append(1)
        raise HTTPException(status, "no", {"Retry-After": "7", "X-Mine": "x", "Set-Cookie": "a=b"})

    web = protect(serve, engine, fail, effects=effects)
    first = web.call("/")
    assert (first.status, first.header("x-mine"), web.states) == (status, "x", [state])
    assert (first.link() is None) == (effects == "atomic" and state != "SUCCEEDED"), first.headers
    second = web.call("/")
    if replayed is None:
        assert second.code == UNKNOWN
    else:
        assert (second.status, second.body, second.replayed) == (status, first.body, replayed)
        assert second.header("retry-after") == "7"
        assert (second.header("set-cookie") is None) == replayed
    assert len(ran) == (2 if replayed is False else 1)


HANDLED: list[tuple[type[Exception], int, dict[str, Any], str]] = [
    (NothingHappened, 503, {}, "FAILED_NOT_REPLAYABLE"),
    (NothingHappened, 400, {}, "FAILED_NOT_REPLAYABLE"),
    (NothingHappened, 200, {}, "FAILED_NOT_REPLAYABLE"),
    (Unreachable, 503, {"nothing_happened": (Unreachable,)}, "FAILED_NOT_REPLAYABLE"),
    (Unreachable, 503, {}, "UNKNOWN"),
    (Unreachable, 503, {"marks_effects": True}, "FAILED_NOT_REPLAYABLE"),
    (Lost, 502, {}, "UNKNOWN"),
    (Lost, 502, {"on_error": "replay"}, "FAILED_REPLAYABLE"),
    (Lost, 502, {"definite_5xx": frozenset({502})}, "FAILED_REPLAYABLE"),
    (Lost, 409, {}, "FAILED_REPLAYABLE"),
    (Lost, 200, {}, "UNKNOWN"),
    (Lost, 303, {"on_error": "replay"}, "UNKNOWN"),
    (Lost, 200, {"effects": "idempotent"}, "PROCESSING"),
    (Lost, 303, {"marks_effects": True}, "FAILED_NOT_REPLAYABLE"),
    (Moved, 303, {}, "SUCCEEDED"),
    (Moved, 200, {}, "UNKNOWN"),
]


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(("kind", "status", "options", "state"), HANDLED)
def test_an_exception_that_the_application_turns_into_an_answer_settles_as_an_exception(
    serve: Serve,
    engine: AsyncEngine,
    kind: type[Exception],
    status: int,
    options: dict[str, Any],
    state: str,
    sync: bool,
) -> None:
    async def fail() -> None:
        raise kind("it says")

    def fail_sync() -> None:
        raise kind("it says")

    async def explain(_: Request, error: Exception) -> Response:
        return PlainTextResponse(str(error), status)

    app = application(engine, fail_sync if sync else fail, **options)
    app.add_exception_handler(kind, explain)
    app.state.semel.install(app)
    web = serve(app, engine)
    first = web.call("/")
    assert (first.status, first.body, web.raised, web.states) == (status, b"it says", None, [state])
    second = web.call("/")
    assert second.replayed is (state in ("FAILED_REPLAYABLE", "SUCCEEDED"))
    assert second.status == (409 if state == "UNKNOWN" else status)


def test_an_unhandled_exception_is_500_and_unknown(serve: Serve, engine: AsyncEngine) -> None:
    async def fail() -> None:
        raise Lost("where")

    web = protect(serve, engine, fail)
    first = web.call("/")
    assert (first.status, type(web.raised)) == (500, Lost)
    assert web.call("/").code == UNKNOWN


def test_an_exception_before_the_effect_frees_the_key_and_after_it_does_not(serve: Serve, engine: AsyncEngine) -> None:
    fails = [False, True]

    async def pay(permit: Permit = Semel.permit) -> None:
        if not fails.pop(0):
            raise Lost("before")
        with permit.effect():
            raise Lost("after")

    web = protect(serve, engine, pay, marks_effects=True)
    assert (web.call("/").status, web.states) == (500, ["FAILED_NOT_REPLAYABLE"])
    assert (web.call("/").status, web.states) == (500, ["UNKNOWN"])


# --- streams ---


@pytest.mark.parametrize(("pieces", "kept"), [(9, True), (10, True), (11, False), (2000, False)])
def test_a_stream_is_kept_up_to_the_limit_and_reaches_its_first_client_whole(
    serve: Serve, engine: AsyncEngine, pieces: int, kept: bool
) -> None:
    ran = []

    async def stream() -> StreamingResponse:
        ran.append(1)
        return StreamingResponse((b"x" * 100 for _ in range(pieces)), media_type="text/plain")

    web = protect(serve, engine, stream, answer_bytes_max=1000)
    first, second = web.call("/"), web.call("/")
    assert (first.status, len(first.body)) == (200, 100 * pieces)
    assert (second.body == first.body and second.replayed) == kept
    assert kept or second.code == NOT_REPLAYABLE
    assert (ran, web.states) == ([1], ["SUCCEEDED"])


def test_an_event_stream_is_sent_at_once_and_never_runs_again(serve: Serve, engine: AsyncEngine) -> None:
    async def events() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        assert web.states == ["PROCESSING"]  # marked before its first byte left, settled after the last
        yield b"data: 2\n\n"

    async def listen() -> StreamingResponse:
        return StreamingResponse(events(), media_type="text/event-stream")

    web = protect(serve, engine, listen)
    assert web.call("/").body == b"data: 1\n\ndata: 2\n\n"
    assert web.call("/").code == NOT_REPLAYABLE


def test_a_stream_that_breaks_is_unknown(serve: Serve, engine: AsyncEngine) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"x" * 10
        raise Lost("in the middle")

    async def stream() -> StreamingResponse:
        return StreamingResponse(pieces())

    web = protect(serve, engine, stream)
    web.call("/")
    assert (type(web.raised), web.call("/").code) == (Lost, UNKNOWN)


# --- other middleware ---


async def passing(request: Request, call_next: Any) -> Response:
    response: Response = await call_next(request)
    response.headers["X-Seen"] = "yes"
    return response


async def reading(request: Request, call_next: Any) -> Response:
    body = await request.body()
    response: Response = await call_next(request)
    response.headers["X-Seen"] = f"{len(body)}"
    return response


async def streaming(request: Request, call_next: Any) -> Response:
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
    request._body = b"x" * size  # what its authors' own middleware does to have the body read twice
    response: Response = await call_next(request)
    response.headers["X-Seen"] = f"{size}"
    return response


class Copying:
    """A middleware that hands on its own scope, so that outer layers do not see what the router finds."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(dict(scope), receive, send)


@pytest.mark.parametrize("above", [False, True])
@pytest.mark.parametrize("middleware", [passing, reading, Copying])
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("parsed", [False, True])
def test_other_middleware_works_on_either_side(
    serve: Serve, engine: AsyncEngine, middleware: Any, above: bool, pieces: int, parsed: bool
) -> None:
    got: list[Any] = []

    async def raw(request: Request) -> int:
        got.append(len(await request.body()))
        return 1

    async def of_fields(fields: dict[str, str]) -> int:
        got.append(len(fields["a"]) + 9)
        return 1

    app = application(engine, of_fields if parsed else raw)

    def add() -> None:
        if middleware is Copying:
            app.add_middleware(Copying)
        else:
            app.add_middleware(BaseHTTPMiddleware, dispatch=middleware)

    if above:
        app.state.semel.install(app)
    add()
    if not above:
        app.state.semel.install(app)
    web = serve(app, engine)

    def send(letter: bytes) -> Any:
        body = b'{"a":"' + letter * 91 + b'"}'
        size = -(-len(body) // pieces)
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        return web.call("/", parts if pieces > 1 else body, headers=[("Content-Type", "application/json")])

    first = send(b"x")
    assert (first.status, web.raised) == (200, None)
    assert send(b"x").replayed
    assert send(b"y").code == REUSED
    assert (got, web.states) == ([100 if parsed else 99], ["SUCCEEDED"])


def test_a_body_that_was_read_elsewhere_is_refused_and_not_hashed_in_part(serve: Serve, engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()

    @semel.command("it")
    async def it(semel_request: Request) -> None:
        raise AssertionError("it ran")

    async def outer(request: Request) -> None:  # no functools.wraps, and it reads first
        await request.body()
        await it(semel_request=request)

    app.post("/")(outer)
    semel.install(app)
    web = serve(app, engine)
    assert web.call("/", b"abc").status == 500
    assert "the body of a request to 'it' was read" in str(web.raised)
    assert web.records() == []


@pytest.mark.parametrize("inside", [False, True])
def test_a_compressed_answer_is_replayed_as_it_was(serve: Serve, engine: AsyncEngine, inside: bool) -> None:
    async def long() -> str:
        return "long " * 500

    app = application(engine, long)
    if not inside:
        app.state.semel.install(app)
    app.add_middleware(GZipMiddleware, minimum_size=100)
    if inside:
        app.state.semel.install(app)
    web = serve(app, engine)
    first, second = (web.call("/", headers=[("Accept-Encoding", "gzip")]) for _ in range(2))
    assert second.replayed
    assert (first.body == second.body) or not inside  # outside, each answer is compressed anew, with its own time
    for answer in (first, second):
        assert (answer.header("content-encoding"), answer.header("vary")) == ("gzip", "Accept-Encoding")
        assert answer.header("content-length") == str(len(answer.body))
        assert gzip.decompress(answer.body) == b'"' + b"long " * 500 + b'"'
    for accepted in ("", "identity", "br, deflate"):  # no client gets a coding that it does not accept
        plain = web.call("/", headers=[("Accept-Encoding", accepted)] if accepted else [])
        assert (plain.replayed, plain.header("content-encoding")) == (True, None)
        assert plain.header("vary") == "Accept-Encoding"
        assert plain.body == b'"' + b"long " * 500 + b'"'
        assert plain.header("content-length") == str(len(plain.body))


def test_a_cookie_is_never_replayed(serve: Serve, engine: AsyncEngine) -> None:
    async def login(response: Response) -> str:
        response.set_cookie("session", "secret")
        return "in"

    first, second = both(protect(serve, engine, login, replay_headers={"x-request-id"}), "/")
    assert first.header("set-cookie") is not None
    assert second.header("set-cookie") is None
    assert b"secret" not in second.body


@pytest.mark.parametrize("inside", [False, True])
def test_cors_headers_are_those_of_each_request(serve: Serve, engine: AsyncEngine, inside: bool) -> None:
    async def it() -> str:
        return "it"

    app = application(engine, it)
    settings: dict[str, Any] = {"allow_origins": ["https://a.example", "https://b.example"], "allow_credentials": True}
    if inside:
        app.add_middleware(CORSMiddleware, **settings)
    app.state.semel.install(app)
    if not inside:
        app.add_middleware(CORSMiddleware, **settings)
    web = serve(app, engine)
    for origin in ("https://a.example", "https://b.example"):
        answer = web.call("/", headers=[("Origin", origin)])
        assert answer.header("access-control-allow-origin") == origin
    assert answer.replayed


def test_a_session_that_changes_before_the_claim_is_not_in_the_replay_but_starlette_sends_its_own(
    serve: Serve, engine: AsyncEngine
) -> None:
    """SessionMiddleware writes its cookie outside the endpoint, on every answer: on replays too, and a fresh one."""

    class Sessions:
        def __init__(self, app: ASGIApp) -> None:
            self.app, self.count = app, 0

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            self.count += 1
            cookie = (b"set-cookie", b"session=%d" % self.count)

            async def sending(message: Any) -> None:
                if message["type"] == "http.response.start":
                    message = {**message, "headers": [*message["headers"], cookie]}
                await send(message)

            await self.app(scope, receive, sending)

    async def it() -> str:
        return "it"

    app = application(engine, it)
    app.add_middleware(Sessions)
    app.state.semel.install(app)
    first, second = both(serve(app, engine), "/")
    assert (first.header("set-cookie"), second.header("set-cookie")) == ("session=1", "session=2")


def test_a_superseded_handler_is_cancelled_if_it_is_idempotent(serve: Serve, engine: AsyncEngine) -> None:
    """Also below a middleware that runs the endpoint in its own task."""
    cancelled = []

    async def slow(permit: Permit = Semel.permit) -> str:
        if permit.attempt > 1:
            return "second"
        permits.append(permit)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(permit.attempt)
            raise
        raise AssertionError

    permits: list[Permit] = []
    app = application(engine, slow, effects="idempotent")
    app.add_middleware(BaseHTTPMiddleware, dispatch=passing)
    app.state.semel.install(app)
    web = serve(app, engine)

    async def supersede() -> tuple[Any, Any]:
        first = asyncio.create_task(web.ask("/"))
        while not permits:  # noqa: ASYNC110 - the handler is the application's
            await asyncio.sleep(0)
        table = engine.backend.driver._table
        [row] = table.rows()
        table.put(row._replace(lease_until=0))
        second = await web.ask("/")
        permits[0].lose()  # what the next renewal would learn
        return await first, second

    first, second = web.runner.run(supersede())
    assert (second.status, second.body, cancelled) == (200, b'"second"', [1])
    assert (first.status, first.body, first.replayed) == (200, second.body, True)


def test_the_first_answer_keeps_all_its_headers_and_the_replay_the_allowed_ones(
    serve: Serve, engine: AsyncEngine
) -> None:
    async def it() -> JSONResponse:
        headers = {"Location": "/1", "X-Request-Id": "7", "ETag": '"e"', "X-Mine": "m", "Server": "s", "Date": "d"}
        return JSONResponse({"a": 1}, 201, headers)

    first, second = both(protect(serve, engine, it, replay_headers={"x-mine"}), "/")
    assert {"location", "x-request-id", "etag", "x-mine", "server", "date"} <= {name for name, _ in first.headers}
    assert sorted(name for name, _ in second.headers) == [
        *("cache-control", "content-length", "content-type", "etag", "idempotency-key-lifetime"),
        *("idempotency-replayed", "link", "location", "x-mine"),
    ]


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_is_replayed_without_one(serve: Serve, engine: AsyncEngine, status: int) -> None:
    async def it() -> Response:
        return Response(status_code=status)

    _, second = both(protect(serve, engine, it), "/")
    assert (second.body, second.header("content-length")) == (b"", None)
