"""Bodies that are too long or too slow end before the application has taken them, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.responses import Response
from starlette.routing import Mount, Route

from semel import AsyncEngine
from semel.http.caller import single_caller
from semel.http.exchange import RETRY_BYTES_MAX
from semel.http.spool import Spool
from semel.integrations.fastapi import Semel
from semel.integrations.starlette import Semel as StarletteSemel
from tests.integrations.conftest import Serve
from tests.integrations.driving import caller_of
from tests.servers.ports import free_port
from tests.service.served import await_true

MIB = 1024 * 1024


class Payment(BaseModel):
    note: str


class Spools:
    """How many bytes were kept for a fingerprint."""

    bytes = 0


@pytest.fixture
def spools(monkeypatch: pytest.MonkeyPatch) -> Spools:
    counted, write = Spools(), Spool.write

    def count(spool: Spool, chunk: bytes) -> None:
        counted.bytes += len(chunk)
        write(spool, chunk)

    monkeypatch.setattr(Spool, "write", count)
    return counted


def nobody(request: Request) -> None:
    raise HTTPException(401)


def application(**settings: Any) -> tuple[FastAPI, list[str]]:
    app, done = FastAPI(), []
    semel = Semel(AsyncEngine.connect("memory://"), caller=single_caller, **settings)

    @app.post("/payments", dependencies=[Depends(nobody)])
    @semel.command("payments.create", effects="idempotent", body_bytes_max=MIB)
    async def create(payment: Payment) -> None: ...

    @app.post("/notes", status_code=201)
    @semel.command("notes.create", effects="idempotent")
    async def note(request: Request) -> str:
        done.append((await request.body()).decode())
        return "noted"

    semel.install(app)
    return app, done


@contextlib.contextmanager
def serve_app(app: Any) -> Iterator[int]:
    config = uvicorn.Config(app, port=free_port(), log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server._serve()))
    thread.start()
    try:
        await_true(lambda: server.started, "uvicorn to start")
        yield config.port
    finally:
        server.should_exit = True
        thread.join(10)


def head(path: str, length: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: a", "Content-Type: application/json", "Idempotency-Key: a-key", length]
    return "\r\n".join([*lines, "", ""]).encode()


def answer_of(line: socket.socket) -> bytes:
    line.settimeout(20)
    got = b""
    with contextlib.suppress(ConnectionError):
        while b"\r\n\r\n" not in got or b"}" not in got:
            piece = line.recv(65536)
            if not piece:
                break
            got += piece
    return got


def test_a_body_model_does_not_take_more_than_the_operation_does(spools: Spools) -> None:
    app, _ = application()
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    with serve_app(app) as port, socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(head("/payments", "Transfer-Encoding: chunked"))
        with contextlib.suppress(OSError):
            for _ in range(48 * 16):  # 48 MiB, which the server throws away
                line.sendall(chunk)
        got = answer_of(line)
    assert got.startswith(b"HTTP/1.1 413 "), got
    assert b"IDEMPOTENCY_REQUEST_TOO_LARGE" in got
    assert spools.bytes <= RETRY_BYTES_MAX + MIB  # a retry of a larger limit's time is read that far


def test_a_body_with_a_too_large_content_length_is_not_read(spools: Spools) -> None:
    app, _ = application()
    with serve_app(app) as port, socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(head("/payments", f"Content-Length: {300 * MIB}") + b"x" * 1000)
        assert answer_of(line).startswith(b"HTTP/1.1 413 ")
    assert spools.bytes == 0


@pytest.mark.parametrize("path", ["/payments", "/notes"])
@pytest.mark.parametrize("begun", [b"", b'{"note":'])
def test_a_body_that_takes_too_long_is_refused(path: str, begun: bytes) -> None:
    app, done = application(body_seconds_max=1)
    with serve_app(app) as port, socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(head(path, "Content-Length: 100") + begun)
        got = answer_of(line)
        assert got.startswith(b"HTTP/1.1 408 "), got
        assert b"IDEMPOTENCY_BODY_TOO_SLOW" in got
    assert done == []


def test_a_body_that_no_command_reads_is_not_kept(serve: Serve, engine: AsyncEngine, spools: Spools) -> None:
    """An upload to a mounted application: it is not known beforehand that it is not a command."""
    semel, sizes = StarletteSemel(engine, caller=caller_of), []

    class Payments(HTTPEndpoint):
        @semel.command("payments.create", effects="idempotent", body_bytes_max=MIB)
        async def post(self, request: Request) -> Response:
            return Response(str(len(await request.body())), status_code=201)

    async def upload(scope: Any, receive: Any, send: Any) -> None:
        sizes.append(len(await Request(scope, receive).body()))
        await Response(status_code=201)(scope, receive, send)

    app = Starlette(routes=[Route("/payments", Payments), Mount("/files", upload)])
    semel.install(app)
    web = serve(app, engine)
    piece = b"x" * 0x10000
    assert web.call("/files/a", [piece] * 160).status == 201
    assert sizes == [10 * MIB]
    assert spools.bytes <= 2 * MIB
    assert web.call("/payments", [piece] * 16).body == b"%d" % MIB
    assert web.call("/payments", [piece] * 17, key="longer").code == "IDEMPOTENCY_REQUEST_TOO_LARGE"
