"""The status of a command: found by its operation id or its key, by its own caller only; also mounted by hand."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from fastapi import Depends, FastAPI, HTTPException, Request
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from semel import AsyncEngine, Permit
from semel.errors import ConfigurationError, SchemaError, SemelError, StoreUnavailable
from semel.http.caller import single_caller
from semel.http.problems import Problems
from semel.integrations.fastapi import Semel as FastApiSemel
from semel.integrations.litestar import Semel as LitestarSemel
from semel.integrations.quart import Semel as QuartSemel
from semel.integrations.starlette import Semel
from semel.operations.http import OperationsApp
from tests.integrations.conftest import Serve
from tests.integrations.driving import Web, caller_of
from tests.web.driving import KEY

NOT_FOUND = "OPERATION_NOT_FOUND"
INVALID = "OPERATION_QUERY_INVALID"
UNKNOWN_CALLER = "IDEMPOTENCY_CALLER_UNKNOWN"


class Failing(Exception):
    """The outcome is unknown."""


async def payment(request: Request, permit: Permit = Semel.permit) -> Response:
    body = await request.body()
    permit.result("payment", "p-1")
    if body == b"lost":
        raise Failing
    if body == b"wait":
        begun, ends = request.app.state.begun, request.app.state.ends
        begun.set()
        await ends.wait()
    return PlainTextResponse("secret answer", 409 if body == b"refuse" else 201)


async def order(request: Request) -> Response:
    return PlainTextResponse("ordered")


def starlette_app(engine: AsyncEngine) -> Starlette:
    semel, app = Semel(engine, caller=caller_of), Starlette()
    app.router.routes += _routes(semel)
    semel.install(app)
    return app


def fastapi_app(engine: AsyncEngine) -> Starlette:
    def authenticate(request: Request) -> None:
        if caller_of(request) is None:
            raise HTTPException(401)

    semel, app = FastApiSemel(engine, caller=caller_of), FastAPI()
    for path, name, endpoint in (("/payments", "payments.create", payment), ("/orders", "orders.create", order)):
        app.post(path)(semel.command(name)(endpoint))
    semel.install(app, dependencies=[Depends(authenticate)])
    return app


def by_hand(engine: AsyncEngine) -> Starlette:
    semel, app = Semel(engine, caller=caller_of), Starlette()
    app.router.routes += [*_routes(semel), Mount("/operations", app=OperationsApp(semel.operations))]
    semel.install(app, operations_path=None)
    return app


def _routes(semel: Semel) -> list[Route]:
    return [
        Route("/payments", semel.command("payments.create")(payment), methods=["POST"]),
        Route("/orders", semel.command("orders.create")(order), methods=["POST"]),
    ]


@pytest.fixture(params=[starlette_app, fastapi_app, by_hand])
def web(request: pytest.FixtureRequest, serve: Serve, engine: AsyncEngine) -> Web:
    return serve(request.param(engine), engine)


def get(web: Web, path: str, query: str = "", caller: str | None = "alice") -> Any:
    return web.call(path, method="GET", query=query, key=None, caller=caller)


def found(answer: Any) -> dict[str, Any]:
    assert (answer.status, answer.header("content-type")) == (200, "application/json")
    assert answer.header("cache-control") == "no-store"
    for secret in (b"secret", KEY.encode()):
        assert secret not in answer.body
    document: dict[str, Any] = json.loads(answer.body)
    return document


@pytest.mark.parametrize(
    ("body", "state", "status", "kept"),
    [(b"pay", "SUCCEEDED", 201, True), (b"refuse", "FAILED_REPLAYABLE", 409, True), (b"lost", "UNKNOWN", None, False)],
)
def test_an_operation_is_found_by_its_id_and_by_its_key(
    web: Web, body: bytes, state: str, status: int | None, kept: bool
) -> None:
    web.call("/payments", body)
    by_key = found(get(web, "/operations", f"key={KEY}") if "/operations" in _paths(web) else _slash(web))
    by_id = found(get(web, f"/operations/{by_key['operationId']}"))
    assert by_id == by_key
    assert (by_key["operation"], by_key["state"], by_key["running"]) == ("payments.create", state, False)
    assert (by_key.get("status"), by_key["answerKept"]) == (status, kept)
    assert by_key["resource"] == {"type": "payment", "id": "p-1"}
    assert ("doubt" in by_key) == (state == "UNKNOWN")


def _paths(web: Web) -> set[str]:
    return {getattr(route, "path", "") for route in web.app.routes if not isinstance(route, Mount)}


def _slash(web: Web) -> Any:
    """A mount answers below itself: its own path takes a slash, to which Starlette redirects."""
    assert get(web, "/operations", f"key={KEY}").status == 307
    return get(web, "/operations/", f"key={KEY}")


def query(web: Web, text: str, caller: str | None = "alice") -> Any:
    return get(web, "/operations" if "/operations" in _paths(web) else "/operations/", text, caller)


def test_another_callers_operation_is_not_found_exactly_like_one_that_never_was(web: Web) -> None:
    web.call("/payments", b"pay")
    id = found(query(web, f"key={KEY}"))["operationId"]
    never = get(web, "/operations/01890a5d-ac96-774b-bcce-b302099a8057", caller="bob")
    others = get(web, f"/operations/{id}", caller="bob")
    assert (others.code, others.body) == (NOT_FOUND, never.body)
    assert (others.status, never.status) == (404, 404)
    assert query(web, f"key={KEY}", "bob").body == query(web, "key=never", "bob").body
    for answer in (get(web, f"/operations/{id}", caller=None), query(web, f"key={KEY}", None)):
        assert answer.status == 401


@pytest.mark.parametrize("id", ["1", "x" * 36, "01890a5d-ac96-774b-bcce-b302099a805", "%00", "01890a5d", "é" * 18])
def test_an_invalid_id_is_refused(web: Web, id: str) -> None:
    answer = get(web, f"/operations/{id}")
    assert (answer.status, answer.code) == (400, INVALID)


@pytest.mark.parametrize("text", ["key=", "key=a&key=b", "key=%00", f"key={'k' * 256}", 'key="unfinished'])
def test_an_invalid_key_is_refused(web: Web, text: str) -> None:
    assert query(web, text).status == 400


def test_a_status_query_needs_a_key_or_an_id(web: Web) -> None:
    assert query(web, "").status in (400, 422)  # FastAPI's own validation answers 422


def test_a_key_of_several_operations_needs_the_operations_name(web: Web) -> None:
    for path in ("/payments", "/orders"):
        assert web.call(path, b"pay").status < 300
    ambiguous = query(web, f"key={KEY}")
    assert (ambiguous.status, ambiguous.code) == (400, INVALID)
    assert "orders.create, payments.create" in ambiguous.problem["detail"]
    for name in ("payments.create", "orders.create"):
        assert found(query(web, f"key={KEY}&operation={name}"))["operation"] == name
    assert query(web, f"key={KEY}&operation=others").code == NOT_FOUND
    assert found(query(web, f'key="{KEY}"&operation=orders.create'))["operation"] == "orders.create"


def test_a_running_operation_has_retry_after(web: Web) -> None:
    async def look() -> tuple[Any, Any]:
        begun, ends = web.app.state.begun, web.app.state.ends = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(web.ask("/payments", b"wait"))
        await begun.wait()
        path = "/operations" if "/operations" in _paths(web) else "/operations/"
        seen = await web.ask(path, method="GET", query=f"key={KEY}", key=None)
        ends.set()
        return seen, await running

    seen, paid = web.runner.run(look())
    document = found(seen)
    assert (document["state"], document["running"], document["answerUntil"]) == ("PROCESSING", True, None)
    assert 1 <= int(seen.header("retry-after")) <= 30
    assert paid.status == 201
    assert query(web, f"key={KEY}").header("retry-after") is None


def test_the_link_of_a_problem_leads_to_the_operation(web: Web) -> None:
    web.call("/payments", b"lost")
    problem = web.call("/payments", b"lost").problem
    assert found(get(web, problem["operation"]))["operationId"] == problem["operationId"]


def test_the_mounted_application_accepts_only_reads(serve: Serve, engine: AsyncEngine) -> None:
    web = serve(by_hand(engine), engine)
    answer = web.call("/operations/1")
    assert (answer.status, answer.header("allow")) == (405, "GET, HEAD")


def test_the_mounted_application_refuses_a_websocket(engine: AsyncEngine) -> None:
    with (
        TestClient(by_hand(engine)) as client,
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect("/operations/1"),
    ):
        raise AssertionError


@pytest.mark.parametrize("kind", [StoreUnavailable, SchemaError])
def test_a_store_that_fails_is_503(web: Web, monkeypatch: pytest.MonkeyPatch, kind: type[SemelError]) -> None:
    async def fail(make: Any) -> Any:
        raise kind("the disk /dev/sda1 is on fire")

    with monkeypatch.context() as patch:
        patch.setattr(web.engine.backend.driver, "run_async", fail)
        for answer in (query(web, f"key={KEY}"), get(web, "/operations/01890a5d-ac96-774b-bcce-b302099a8057")):
            assert (answer.status, answer.code) == (503, "IDEMPOTENCY_STORE_UNAVAILABLE")
            assert b"sda1" not in answer.body


@pytest.mark.parametrize("surface", [FastAPI, Starlette])
def test_the_page_about_problems_needs_no_credentials(serve: Serve, engine: AsyncEngine, surface: Any) -> None:
    fast = FastApiSemel(engine, caller=caller_of)
    semel: Semel = fast if surface is FastAPI else Semel(engine, caller=caller_of)
    app = surface()

    @semel.command("pay")
    async def pay(request: Request) -> Response:
        return Response("paid", 201)

    if surface is FastAPI:
        app.post("/payments")(pay)
        fast.install(app, dependencies=[Depends(_nobody)])
    else:
        app.add_route("/payments", pay, methods=["POST"])
        semel.install(app)
    web = serve(app, engine)
    first, again, refused = web.call("/payments"), web.call("/payments"), web.call("/payments", key=None)
    assert first.header("idempotency-key-lifetime") == again.header("idempotency-key-lifetime") == "86400"
    assert first.link() == again.link() is not None
    page, _, anchor = (refused.link("describedby") or "").partition("#")
    answer = web.call(page, method="GET", key=None)
    assert (answer.status, f'id="{anchor}"'.encode() in answer.body) == (200, True)


def _nobody() -> None:
    raise HTTPException(401)


def _link_of(make: Any, *, at: str = "", problems: Problems | None = None, **more: Any) -> int:
    """The status of the answer behind the link of a command's answer."""
    app = FastAPI() if make is FastApiSemel else Starlette()
    engine = AsyncEngine.connect("memory://?persistence=none")
    semel = make(engine, caller=single_caller, problems=problems or Problems())
    endpoint = semel.command("orders.create")(order)
    if isinstance(app, FastAPI):
        app.post("/orders")(endpoint)
    else:
        app.router.routes.append(Route("/orders", endpoint, methods=["POST"]))
    semel.install(app, **more)
    outer = Starlette(routes=[Mount(at, app)]) if at else app
    with TestClient(outer) as client:
        link = client.post(f"{at}/orders", headers={"Idempotency-Key": KEY}).headers["link"]
        return client.get(link[1 : link.index(">")]).status_code


@pytest.mark.parametrize("make", [Semel, FastApiSemel])
def test_links_lead_to_where_the_status_is_served(make: Any) -> None:
    elsewhere = Problems(operations_path="/eu/status/{id}")
    assert _link_of(make) == 200
    assert _link_of(make, problems=elsewhere) == 200
    assert _link_of(make, problems=elsewhere, operations_path="/eu/status") == 200
    assert _link_of(make, problems=elsewhere, operations_path="/status", at="/eu") == 200
    assert _link_of(make, operations_path="/operations/") == 200
    assert _link_of(make, problems=elsewhere, operations_path="/eu/status/") == 200
    at_root = Problems(operations_path="/{id}")
    assert _link_of(make, problems=at_root) == _link_of(make, problems=at_root, operations_path="/") == 200
    with pytest.raises(ConfigurationError, match=r"Problems\(operations_path='/ops/\{id\}'\)"):
        _link_of(make, operations_path="/ops/")
    says = re.escape("every answer links to '/operations/{id}'")
    for wrong in (
        lambda engine: QuartSemel(None, engine, caller=single_caller, operations_path="/ops"),
        lambda engine: LitestarSemel(engine, caller=single_caller, operations_path="/ops"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            wrong(AsyncEngine.connect("memory://"))
