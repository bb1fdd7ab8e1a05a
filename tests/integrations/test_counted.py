"""What of a request's head counts in Starlette and FastAPI, where the endpoint claims after validation."""

from __future__ import annotations

import gzip
import hashlib
import json
from base64 import b64encode
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from semel.engine.async_engine import AsyncEngine
from semel.http.fingerprint.fingerprinter import NoBody
from semel.integrations.fastapi import Semel as FastSemel
from semel.integrations.starlette import Semel
from tests.integrations.conftest import Serve
from tests.integrations.driving import Web, caller_of
from tests.web.driving import Headers

REUSED = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
BODY = json.dumps({"amount": 5}).encode()
JSON = [("Content-Type", "application/json")]
PACKED, PACKED_ANEW = (gzip.compress(BODY, mtime=clock) for clock in (1, 2))
GZIP = [("Content-Encoding", "gzip")]


def make_web(serve: Serve, framework: str, engine: AsyncEngine, policy: Any = None, **settings: Any) -> Web:
    calls: list[int] = []
    kind: Any = Semel if framework == "starlette" else FastSemel
    semel = kind(engine, caller=caller_of, **settings)

    async def pay(request: Request) -> Response:
        calls.append(1)
        return JSONResponse({"call": len(calls)}, 201)

    declared = semel.command("pay", **(policy or {}))(pay)
    app: Any
    if framework == "starlette":
        app = Starlette(routes=[Route("/pay", declared, methods=["POST"])])
    else:
        app = FastAPI()
        app.post("/pay")(declared)
    semel.install(app)
    return serve(app, engine)


BOTH = pytest.mark.parametrize("framework", ["starlette", "fastapi"])


@BOTH
@pytest.mark.parametrize("settings", [{"policy": {"counts": ("stripe-account",)}}, {"counts": ("Stripe-Account",)}])
def test_a_declared_header_counts(serve: Serve, framework: str, engine: AsyncEngine, settings: Any) -> None:
    web = make_web(serve, framework, engine, **settings)
    first, second = ([*JSON, ("Stripe-Account", f"acct_{n}")] for n in (1, 2))
    assert web.call("/pay", BODY, headers=first).status == 201
    assert web.call("/pay", BODY, headers=first).replayed
    assert web.call("/pay", BODY, headers=second).code == REUSED


def digest(body: bytes) -> Headers:
    return [("Content-Digest", f"sha-256=:{b64encode(hashlib.sha256(body).digest()).decode()}:")]


@BOTH
@pytest.mark.parametrize("pieces", [False, True])
def test_codings_parameters_and_digests(serve: Serve, framework: str, engine: AsyncEngine, pieces: bool) -> None:
    web = make_web(serve, framework, engine, policy={"json": "any"})

    def call(body: bytes, headers: Headers, key: str) -> Any:
        return web.call("/pay", [body[:9], body[9:]] if pieces else body, headers=headers, key=key)

    assert call(PACKED, [*JSON, *GZIP], "a").status == 201
    for body, headers in ((PACKED_ANEW, [*JSON, *GZIP]), (BODY, JSON), (BODY, [*JSON, *digest(BODY)])):
        assert call(body, headers, "a").replayed
    assert call(BODY, [("Content-Type", "application/json; charset=utf-8")], "a").replayed
    assert call(PACKED, JSON, "a").code == REUSED
    assert call(BODY, [("Content-Type", "application/json; version=2")], "a").code == REUSED
    refused = call(BODY, [*JSON, *digest(PACKED)], "b")
    assert (refused.status, refused.code) == (400, "IDEMPOTENCY_REQUEST_INVALID")
    assert len(web.records()) == 1


@BOTH
def test_a_body_outside_the_fingerprint_does_not_make_another_command(
    serve: Serve, framework: str, engine: AsyncEngine
) -> None:
    web = make_web(serve, framework, engine, policy={"fingerprint": NoBody(), "json": "any"})
    assert web.call("/pay", b"one", headers=JSON).status == 201
    assert web.call("/pay", b"two", headers=JSON).replayed
