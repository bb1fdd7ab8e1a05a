"""FastAPI: the claim is made inside the endpoint, so a request that the application refuses leaves no record."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI, Request, WebSocket
from starlette.testclient import TestClient

from semel import AsyncEngine
from semel.errors import ConfigurationError
from semel.integrations.fastapi import Semel
from tests.integrations.conftest import Serve
from tests.integrations.driving import Web, both, caller_of, noting
from tests.integrations.fastapi_made import PAYMENT, Made

MISSING = "MISSING_IDEMPOTENCY_KEY"
INVALID = "INVALID_IDEMPOTENCY_KEY"
REUSED = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
RUNNING = "IDEMPOTENCY_REQUEST_IN_PROGRESS"
UNKNOWN = "IDEMPOTENCY_OUTCOME_UNKNOWN"


@pytest.fixture
def service(serve: Serve, engine: AsyncEngine) -> Made:
    return Made(serve, engine)


def test_a_command_runs_once_and_its_answer_is_replayed(service: Made) -> None:
    first, second = both(service.web, "/payments", PAYMENT)
    assert (first.status, first.body) == (201, b'{"amount":1250,"attempt":1}')
    assert (second.header("location"), second.header("content-type")) == ("/payments/1", "application/json")
    assert second.header("cache-control") == "no-store"
    assert second.header("content-length") == str(len(first.body))
    assert (service.ran, service.web.states) == ([1250], ["SUCCEEDED"])


BAD = {"amount": "much"}


@pytest.mark.parametrize(
    ("body", "how", "status", "code"),
    [
        # Authentication and validation are the application's own: they come before any answer about the key.
        (BAD, {"caller": None, "key": None}, 401, None),
        (PAYMENT, {"caller": None, "key": "a b\x01"}, 401, None),
        (BAD, {"key": None}, 422, None),
        (BAD, {"key": "a b\x01"}, 422, None),
        (b'{"amount":', {"headers": [("Content-Type", "application/json")]}, 422, None),
        (PAYMENT, {"key": None}, 400, MISSING),
        (PAYMENT, {"key": ""}, 400, INVALID),
        (PAYMENT, {"key": "k" * 256}, 400, INVALID),
        (PAYMENT, {"headers": [("Idempotency-Key", "another")]}, 400, INVALID),
        (PAYMENT, {"headers": [("Early-Data", "1")]}, 425, "IDEMPOTENCY_TOO_EARLY"),
    ],
)
def test_a_request_refused_before_the_claim_is_never_recorded(
    service: Made, body: Any, how: dict[str, Any], status: int, code: str | None
) -> None:
    refused = service.web.call("/payments", body, **how)
    assert refused.status == status
    assert refused.header("semel-code") == code
    assert (service.ran, service.web.records()) == ([], [])


def test_another_request_under_the_same_key_is_refused_in_every_state(service: Made) -> None:
    other = {"amount": 1}
    service.fails = RuntimeError("lost")
    assert service.web.call("/payments", PAYMENT).status == 500
    assert service.web.call("/payments", other).code == REUSED
    assert service.web.call("/payments", PAYMENT).code == UNKNOWN
    service.fails = None
    assert service.web.call("/payments", PAYMENT, key="second").status == 201
    assert service.web.call("/payments", other, key="second").code == REUSED
    assert service.ran == [1250, 1250]


@pytest.mark.parametrize(
    ("options", "headers"), [({"wait_seconds": 0}, []), ({"wait_seconds": 60}, [("Prefer", "wait=0")])]
)
def test_a_duplicate_of_a_running_command_gets_409(
    serve: Serve, engine: AsyncEngine, options: dict[str, Any], headers: list[tuple[str, str]]
) -> None:
    made = Made(serve, engine, **options)
    first, second, _ = made.web.runner.run(_overlap(made, headers))
    assert (second.status, second.code, second.problem["keyAction"]) == (409, RUNNING, "keep")
    assert 1 <= int(second.header("retry-after") or 0) <= 30
    assert (first.status, made.ran) == (201, [1250])


def test_a_duplicate_waits_as_long_as_it_prefers(serve: Serve, engine: AsyncEngine) -> None:
    made = Made(serve, engine, wait_seconds=0)
    first, _, third = made.web.runner.run(_overlap(made, [("Prefer", 'respond-async, wait="15"')]))
    assert (third.status, third.body, third.replayed) == (201, first.body, True)
    assert made.ran == [1250]


async def _overlap(made: Made, headers: list[tuple[str, str]]) -> tuple[Any, Any, Any]:
    """One request; a duplicate while it runs, which does not wait; one with these headers, answered at the end."""
    made.gate = asyncio.Event()
    first = asyncio.create_task(made.web.ask("/payments", PAYMENT))
    await made.began.wait()
    impatient = headers if "wait=0" in str(headers) else []
    second = await made.web.ask("/payments", PAYMENT, headers=impatient)
    third = asyncio.create_task(made.web.ask("/payments", PAYMENT, headers=headers))
    while not impatient and made.web.engine.core.waiting == 0 and not third.done():  # noqa: ASYNC110 - others' state
        await asyncio.sleep(0)
    made.gate.set()
    return await first, second, await third


def test_twenty_parallel_duplicates_are_one_command(serve: Serve, engine: AsyncEngine) -> None:
    made = Made(serve, engine, wait_seconds=15)

    async def crowd() -> list[Any]:
        return await asyncio.gather(*(made.web.ask("/payments", PAYMENT) for _ in range(20)))

    answers = made.web.runner.run(crowd())
    assert {(answer.status, answer.body) for answer in answers} == {(201, b'{"amount":1250,"attempt":1}')}
    assert (sum(answer.replayed for answer in answers), made.ran) == (19, [1250])


# --- the whole application ---


def test_the_engine_lives_as_long_as_the_application(engine: AsyncEngine) -> None:
    notes: list[str] = []
    app = FastAPI(lifespan=lambda _: noting(notes, "up", "down"))
    Semel(engine, caller=caller_of).install(app)
    web = Web(app, engine)
    assert notes == ["up"]
    assert web.runner.run(engine.perform("identity", engine.store.identity)) is not None
    web.close()
    assert notes == ["up", "down"]


def test_an_application_whose_store_is_not_migrated_does_not_start(tmp_path: Any) -> None:
    engine = AsyncEngine.connect(f"sqlite:///{tmp_path}/missing.db")
    app = FastAPI()
    Semel(engine, caller=caller_of).install(app)
    with pytest.raises(ConfigurationError, match="migrate"):
        Web(app, engine)


def test_other_requests_pass_unchanged(service: Made) -> None:
    @service.app.post("/echo")
    async def echo(request: Request) -> dict[str, str]:
        return {"body": (await request.body()).decode()}

    assert service.web.call("/echo", b"x" * 5, key="k").body == b'{"body":"xxxxx"}'
    assert service.web.call("/nowhere", PAYMENT).status == 404
    assert service.web.call("/payments", method="DELETE").status == 405
    assert service.web.records() == []


def test_a_websocket_passes(engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()

    @app.websocket("/socket")
    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        await websocket.close()

    semel.install(app)
    with TestClient(app) as client, client.websocket_connect("/socket") as socket:
        socket.send_text("hello")
        assert socket.receive_text() == "hello"
