"""Endpoints that claim for themselves: a retry finds its record although a limit became stricter."""

from __future__ import annotations

import json

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from semel import AsyncEngine, Permit, Policy
from semel.integrations.starlette import Semel
from tests.integrations.conftest import Serve
from tests.integrations.driving import Web, caller_of
from tests.web.test_limits_of_today import BODY, CODES, STRICTER


def serve_app(serve: Serve, engine: AsyncEngine, policy: Policy, ran: list[int]) -> Web:
    semel = Semel(engine, caller=caller_of)

    async def pay(request: Request, permit: Permit = Semel.permit) -> Response:
        ran.append(permit.attempt)
        return PlainTextResponse("paid", 201)

    app = Starlette(routes=[Route("/pay", semel.command("pay", policy)(pay), methods=["POST"])])
    semel.install(app)
    return serve(app, engine)


@pytest.mark.parametrize("limit", STRICTER)
def test_an_endpoint_that_claims_itself_replays(serve: Serve, engine: AsyncEngine, limit: str) -> None:
    ran: list[int] = []
    assert serve_app(serve, engine, Policy(), ran).call("/pay", json.loads(BODY), key="order-1").status == 201
    stricter = serve_app(serve, engine, STRICTER[limit](Policy()), ran)
    again = stricter.call("/pay", json.loads(BODY), key="order-1")
    assert (again.status, again.body, again.replayed) == (201, b"paid", True)
    new = stricter.call("/pay", json.loads(BODY), key="order-2")
    assert (new.status, new.code) == CODES.get(limit, CODES["body"])
    assert ran == [1]
