"""An application may answer every failure with one response: nothing of one caller's command stays in it."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from semel import AsyncEngine
from semel.http.caller import Caller
from semel.integrations.starlette import Semel

OOPS = PlainTextResponse("sorry", status_code=500)


def test_links_are_those_of_each_request() -> None:
    def caller_of(request: Request) -> Caller:
        return Caller("acme", request.headers["x-user"])

    semel = Semel(AsyncEngine.connect("memory://?persistence=none"), caller=caller_of)

    @semel.command("pay", effects="external")
    async def pay(request: Request) -> Response:
        raise RuntimeError("boom")

    routes = [Route("/pay", pay, methods=["POST"])]
    app = Starlette(routes=routes, exception_handlers={Exception: lambda request, error: OOPS})
    semel.install(app)
    with TestClient(app, raise_server_exceptions=False) as client:
        links = []
        for user in ("alice", "bob"):
            answer = client.post("/pay", json={}, headers={"X-User": user, "Idempotency-Key": f"key-of-{user}"})
            links.append(answer.headers.get_list("link"))
    assert [len(each) for each in links] == [1, 1]
    assert links[0] != links[1]
