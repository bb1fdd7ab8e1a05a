"""Sealed, rebuilt, redacted and forgotten answers over HTTP, ASGI and WSGI alike, and of functions. 3 s."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response
from starlette.testclient import TestClient

from semel import AsyncEngine, Engine, Permit, Rebuilding, Sealer, command
from semel.core.model import Answer, Find
from semel.errors import ConfigurationError, NotReplayableError, RecordUnreadableError
from semel.functions import single_caller, this_permit
from semel.http.caller import Caller
from semel.http.problems import Problems
from semel.http.routing import Operation
from semel.integrations.fastapi import Semel
from semel.policy import Policy
from tests.sealing.conftest import RING, SECRET
from tests.web.driving import KEY, AsgiWeb, Reply, Seen, Web, WsgiWeb

BODY = json.dumps({"id": 7, "card": {"number": SECRET}}).encode()


@pytest.fixture(params=[AsgiWeb, WsgiWeb], ids=["asgi", "wsgi"])
def make(request: pytest.FixtureRequest) -> Any:
    made: list[Web] = []

    def web(policy: Policy, status: int = 201) -> Web:
        def pay(seen: Seen) -> Reply:
            seen.permit.result("payment", "7")
            if status == 204:
                return Reply(204, [], [])
            return Reply(status, [("content-type", "application/json"), ("etag", '"1"')], [BODY])

        made.append(
            request.param(
                pay,
                operations=[Operation("/payments", policy)],
                sealer=Sealer(RING),
                problems=Problems(resource_paths={"payment": "/payments/{id}"}),
            )
        )
        return made[-1]

    yield web
    for each in made:
        each.close()


def test_a_sealed_answer_is_the_first_one_again_and_unreadable_without_its_key(make: Any) -> None:
    web = make(Policy(answers="seal"))
    first, again = web.call(), web.call()
    assert (first.status, first.body, again.status, again.body, again.replayed) == (201, BODY, 201, BODY, True)
    web.engine.core.sealer = Sealer({"2025": bytes(32)})
    lost = web.call()
    assert (lost.status, json.loads(lost.body)["code"]) == (500, "IDEMPOTENCY_RECORD_UNREADABLE")
    assert SECRET not in repr((lost.body, lost.headers))
    assert len(web.seen) == 1


def test_a_redacted_answer_has_null_and_no_header_of_the_whole_body(make: Any) -> None:
    web = make(Policy(redact=("card.number",), replay_headers=frozenset({"etag"})))
    assert web.call().body == BODY
    again = web.call()
    assert json.loads(again.body) == {"id": 7, "card": {"number": None}}
    assert (again.header("etag"), again.header("content-length")) == (None, str(len(again.body)))


def test_a_rebuilt_answer_is_marked_and_one_that_fails_links_the_resource(make: Any) -> None:
    amounts = [10, 12]

    def read(done: Rebuilding) -> dict[str, Any]:
        return {"id": done.resource_id, "amount": amounts.pop(0)}

    web = make(Policy(answers="rebuild", rebuild=read))
    web.call()
    for amount in (10, 12):
        again = web.call()
        assert (again.status, again.replayed) == (201, True)
        assert json.loads(again.body) == {"id": "7", "amount": amount}
        assert again.header("content-type") == "application/json"
    lost = web.call()  # nothing is left to read: IndexError
    problem = json.loads(lost.body)
    assert (lost.status, problem["code"]) == (409, "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE")
    assert problem["resource"] == "/payments/7"
    assert len(web.seen) == 1


@pytest.mark.parametrize("status", [201, 204])
@pytest.mark.parametrize("kind", [Answer, Response])
def test_a_rebuilt_answer_is_filtered_like_a_replay(make: Any, kind: Any, status: int) -> None:
    headers = [
        ["Content-Type", "text/plain"],
        ["ETag", ' "2" '],
        ["Content-Length", "999"],
        ["Transfer-Encoding", "chunked"],
        ["Set-Cookie", "session=1"],
        ["X-Split", "a\r\nb: c"],
        ["X-Made", "again"],
    ]
    raw = [[name.encode(), value.encode()] for name, value in headers]

    def read(done: Rebuilding) -> Any:
        if kind is Answer:
            return Answer(500, raw, bytearray(b"again"))  # type: ignore[arg-type]
        response = Response(b"again", 500)
        response.raw_headers = [(name, value) for name, value in raw]
        return response

    web = make(Policy(answers="rebuild", rebuild=read), status)
    web.call()
    for _ in range(2):
        again = web.call()
        assert (again.status, again.replayed) == (status, True)
        assert again.body == (b"again" if status == 201 else b"")
        found = [(name.lower(), value) for name, value in again.headers]
        kept = [pair for pair in found if pair[0] in {name.lower() for name, _ in headers}]
        length = [("content-length", "5")] if status == 201 else []
        assert kept == [("content-type", "text/plain"), ("etag", '"2"'), ("x-made", "again"), *length]
    assert len(web.seen) == 1


def test_a_forgotten_answer_links_the_resource(make: Any) -> None:
    web = make(Policy(answers="forget"))
    assert web.call().body == BODY
    assert json.loads(web.call().body)["resource"] == "/payments/7"
    assert len(web.seen) == 1


def test_an_endpoint_is_declared_with_its_builder() -> None:
    engine = AsyncEngine.connect("memory://?persistence=none")
    app = FastAPI()

    def caller(request: Request) -> Caller:
        return Caller("acme", "alice")

    semel = Semel(engine, caller=caller)

    async def read_payment(done: Rebuilding) -> JSONResponse:
        return JSONResponse({"id": done.resource_id, "now": "settled"}, headers={"x-made": "again"})

    @app.post("/payments", status_code=201)
    @semel.command("payments.create", answers="rebuild", rebuild=read_payment)
    async def pay(permit: Permit = semel.permit) -> dict[str, str]:
        permit.result("payment", "7")
        return {"secret": SECRET}

    semel.install(app)
    with TestClient(app) as client:
        first = client.post("/payments", headers={"idempotency-key": KEY})
        again = client.post("/payments", headers={"idempotency-key": KEY})
    assert first.json() == {"secret": SECRET}
    assert (again.status_code, again.json()) == (201, {"id": "7", "now": "settled"})
    assert again.headers["idempotency-replayed"] == "true"


def test_sealing_is_refused_when_the_application_is_built_without_a_sealer() -> None:
    semel = Semel(AsyncEngine.connect("memory://"), caller=single_caller)
    with pytest.raises(ConfigurationError, match="'a' is declared with answers='seal', and the engine has no sealer"):
        semel.command("a", answers="seal")


# --- functions ------------------------------------------------------------------------------------


@dataclass
class Payment:
    id: int
    card: str


def test_the_result_of_a_function_is_sealed_and_opens_as_its_type() -> None:
    with Engine.connect("memory://?persistence=none", sealer=Sealer(RING)) as engine:

        @command(engine, "pay", key="number", caller=single_caller, answers="seal")
        def pay(number: int) -> Payment:
            return Payment(number, SECRET)

        assert pay(7) == pay(7) == Payment(7, SECRET)
        record = pay.record(7)
        assert SECRET not in repr(record)
        engine.core.sealer = Sealer({"2025": bytes(32)})
        with pytest.raises(RecordUnreadableError):
            pay(7)


def test_the_result_of_a_function_is_rebuilt_as_its_type() -> None:
    cards = ["new"]

    def read(done: Rebuilding) -> Payment:
        return Payment(int(done.resource_id or 0), cards.pop())

    with Engine.connect("memory://?persistence=none") as engine:

        @command(engine, "pay", key="number", caller=single_caller, answers="rebuild", rebuild=read)
        def pay(number: int, permit: Permit = this_permit) -> Payment:
            permit.result("payment", str(number))
            return Payment(number, SECRET)

        assert (pay(7), pay(7)) == (Payment(7, SECRET), Payment(7, "new"))
        with pytest.raises(NotReplayableError):
            pay(7)
        page = engine.perform("find", lambda: engine.store.find(Find()))
        assert SECRET not in repr(page)


def test_the_result_of_an_async_function_is_rebuilt_by_either_kind_of_builder() -> None:
    async def read(done: Rebuilding) -> int:
        return 8

    async def story() -> None:
        async with AsyncEngine.connect("memory://?persistence=none") as engine:

            @command(engine, "one", key="number", caller=single_caller, answers="rebuild", rebuild=read)
            async def one(number: int) -> int:
                return number

            @command(engine, "two", key="number", caller=single_caller, answers="rebuild", rebuild=lambda done: 9)
            async def two(number: int) -> int:
                return number

            assert [await one(7), await one(7), await two(7), await two(7)] == [7, 8, 7, 9]

    asyncio.run(story())


def test_a_sync_function_requires_a_sync_builder() -> None:
    async def read(done: Rebuilding) -> int:
        return 8

    with pytest.raises(ConfigurationError, match="pay is a plain function, and its rebuild= is async"):

        @command(Engine.connect("memory://"), "pay", key="n", caller=single_caller, answers="rebuild", rebuild=read)
        def pay(n: int) -> int:
            return n
