"""FastAPI: bodies are compared by what they say, and one that is not whole is not a command."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from fastapi import Body, Depends, FastAPI, File, Form, Request, UploadFile

from semel import AsyncEngine
from semel.integrations.fastapi import Semel
from tests.integrations.conftest import Serve
from tests.integrations.driving import caller_of, multipart
from tests.integrations.fastapi_made import PAYMENT, Made

REUSED = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
TOO_LARGE = "IDEMPOTENCY_REQUEST_TOO_LARGE"


@pytest.fixture
def service(serve: Serve, engine: AsyncEngine) -> Made:
    return Made(serve, engine)


def test_forms_are_compared_by_their_fields(serve: Serve, engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()

    @app.post("/form")
    @semel.command("form")
    async def form(amount: Annotated[int, Form()], text: Annotated[str, Form()]) -> str:
        return f"{amount} {text}"

    semel.install(app)
    web = serve(app, engine)
    kind = [("Content-Type", "application/x-www-form-urlencoded")]
    first = web.call("/form", b"amount=5&text=a+b", headers=kind)
    assert first.body == b'"5 a b"'
    assert web.call("/form", b"amount=5&text=a%20b", headers=kind).replayed
    assert web.call("/form", b"amount=6&text=a+b", headers=kind).code == REUSED


@pytest.mark.parametrize("size", [10, 70_000, 3_000_000], ids=["small", "several-chunks", "on-disk"])
def test_uploads_are_compared_by_their_parts(serve: Serve, engine: AsyncEngine, size: int) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    got = []

    @app.post("/files")
    @semel.command("files.create")
    async def upload(name: Annotated[str, Form()], file: Annotated[UploadFile, File()]) -> int:
        got.append(len(await file.read()))
        return got[-1]

    semel.install(app)
    web = serve(app, engine)

    def post(content: bytes, boundary: str) -> Any:
        body, headers = multipart([("name", None, b"n"), ("file", "f.txt", content)], boundary)
        pieces = [body[at : at + 60_000] for at in range(0, len(body), 60_000)]
        return web.call("/files", pieces, headers=headers)

    first = post(b"x" * size, "one")
    assert (first.status, first.body) == (200, str(size).encode())
    again = post(b"x" * size, "another")  # each try of a client has another boundary
    assert (again.replayed, again.body) == (True, first.body)
    assert post(b"x" * (size - 1) + b"y", "one").code == REUSED
    assert got == [size]


READERS = ["body", "stream", "json-field", "nothing"]


@pytest.mark.parametrize("reads", READERS)
@pytest.mark.parametrize(
    "body",
    [b"", b"abc", [b"ab", b"", b"c"], [b"x" * 65_536 for _ in range(40)], b"x" * 2_000_000, [b"", b""]],
    ids=["empty", "whole", "chunked", "large-chunked", "large-whole", "empty-chunked"],
)
def test_a_raw_body_reaches_the_endpoint_as_it_was_sent(
    serve: Serve, engine: AsyncEngine, reads: str, body: Any
) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    got = []

    async def early(request: Request) -> None:
        if reads == "json-field":
            await request.body()

    @app.post("/raw", dependencies=[Depends(early)])
    @semel.command("raw")
    async def raw(request: Request) -> int:
        if reads == "stream":
            got.append(b"".join([chunk async for chunk in request.stream()]))
        elif reads != "nothing":
            got.append(await request.body())
        return 1

    semel.install(app)
    web = serve(app, engine)
    whole = body if isinstance(body, bytes) else b"".join(body)
    first = web.call("/raw", body)
    assert (first.status, web.raised) == (200, None)
    again = web.call("/raw", body)
    assert (again.replayed, again.body) == (True, first.body)
    assert web.call("/raw", whole + b"!").code == REUSED
    assert got == ([] if reads == "nothing" else [whole])


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("parsed", [False, True])
def test_a_body_over_the_limit_is_refused_and_the_handler_does_not_run(
    serve: Serve, engine: AsyncEngine, chunked: bool, parsed: bool
) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    ran = []

    @app.post("/raw")
    @semel.command("raw", body_bytes_max=1000)
    async def raw(request: Request) -> None:
        ran.append("raw")

    @app.post("/parsed")
    @semel.command("parsed", body_bytes_max=1000)
    async def of_text(text: Annotated[str, Body()]) -> None:
        ran.append("parsed")

    semel.install(app)
    web = serve(app, engine)
    path, kind = ("/parsed", [("Content-Type", "application/json")]) if parsed else ("/raw", [])
    for size, refused in ((1000, False), (1001, True), (100_000, True)):
        text = b'"' + b"x" * (size - 2) + b'"'
        sent = [text[:500], text[500:]] if chunked else text
        answer = web.call(path, sent, headers=kind, key=f"key-{size}")
        assert answer.status == (413 if refused else 200)
        if refused:
            assert answer.code == TOO_LARGE
    assert (len(ran), len(web.records())) == (1, 1)


@pytest.mark.parametrize("parsed", [False, True])
def test_an_incomplete_body_claims_nothing(serve: Serve, engine: AsyncEngine, parsed: bool) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    ran = []

    @app.post("/raw")
    @semel.command("raw")
    async def raw(request: Request) -> None:
        ran.append(await request.body())

    @app.post("/parsed")
    @semel.command("parsed")
    async def of_text(text: Annotated[str, Body()]) -> None:
        ran.append(text.encode())

    semel.install(app)
    web = serve(app, engine)
    web.call("/parsed" if parsed else "/raw", [b'"half of it'], leaves=True)
    assert (ran, web.records()) == ([], [])


def test_a_client_that_disconnects_changes_nothing(service: Made) -> None:
    async def leave() -> Any:
        service.gate = asyncio.Event()
        call = asyncio.create_task(service.web.ask("/payments", PAYMENT))
        await service.began.wait()
        call.cancel()
        await asyncio.wait({call})
        service.gate.set()
        return await service.web.ask("/payments", PAYMENT, headers=[("Prefer", "wait=15")])

    answer = service.web.runner.run(leave())
    assert (answer.status, answer.replayed, service.ran) == (201, True, [1250])
