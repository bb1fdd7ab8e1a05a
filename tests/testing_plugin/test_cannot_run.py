"""A test that cannot run fails with the reason and the remedy, never with a finding that is none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from semel import AsyncEngine, Engine, KeyFormat, Policy
from semel.errors import ConfigurationError
from semel.http.asgi.middleware import SemelMiddleware
from semel.http.caller import single_caller
from semel.http.routing import Operation
from semel.integrations.fastapi import Semel
from semel.testing.idempotent import (
    CannotRun,
    Case,
    FunctionTarget,
    NotTriedWarning,
    assert_idempotent,
    assert_idempotent_async,
    check_idempotent,
    rows,
)
from semel.testing.idempotent.case import alter
from tests.testing_plugin import good
from tests.testing_plugin.good import ALICE, BOB, Provider

PAY: dict[str, Any] = {"json": {"amount": 1}}


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def app(provider: Provider) -> FastAPI:
    return good.fastapi_app(AsyncEngine.connect("memory://"), provider)


def why_not(act: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(CannotRun) as raised:
        act()
    assert raised.value.reason in str(raised.value)
    return raised.value.reason, raised.value.remedy


def test_a_missing_route_is_reported(app: FastAPI, provider: Provider) -> None:
    reason, remedy = why_not(
        lambda: assert_idempotent(app, "POST /paymets", **PAY, headers=ALICE, effects=provider.charges)
    )
    assert reason.startswith("there is no such route: POST /paymets came back with 404")
    assert remedy == "did you mean 'POST /payments'?"
    _, remedy = why_not(lambda: assert_idempotent(app, "PUT /x", **PAY, headers=ALICE, effects=provider.charges))
    assert remedy == "the application has: POST /payments"


def test_the_caller_is_refused(app: FastAPI, provider: Provider) -> None:
    reason, remedy = why_not(lambda: assert_idempotent(app, "POST /payments", **PAY, effects=provider.charges))
    assert reason.startswith("the caller is refused: POST /payments came back with 401")
    assert "headers={'Authorization': ...}" in remedy


def test_the_payload_is_refused(app: FastAPI, provider: Provider) -> None:
    reason, remedy = why_not(
        lambda: assert_idempotent(app, "POST /payments", json="?", headers=ALICE, effects=provider.charges)
    )
    assert "the application refuses this very request: POST /payments came back with 422" in reason
    assert "json=" in remedy


def test_the_counter_never_grows(app: FastAPI, provider: Provider) -> None:
    another_provider = Provider()
    reason, remedy = why_not(
        lambda: assert_idempotent(app, "POST /payments", **PAY, headers=ALICE, effects=another_provider.charges)
    )
    assert "the effect counter did not grow" in reason
    assert "not a second instance" in remedy
    assert len(provider.charges) == 1  # it stops there


@pytest.mark.parametrize(
    ("effects", "reason"),
    [(lambda: None, "returned None"), (lambda: True, "returned True"), (lambda: 1 // 0, "failed: ZeroDivisionError")],
)
def test_an_effect_counter_that_counts_nothing_is_reported(effects: Any, reason: str, app: FastAPI) -> None:
    assert reason in why_not(lambda: assert_idempotent(app, "POST /payments", **PAY, headers=ALICE, effects=effects))[0]


def test_a_missing_counted_table_is_reported(app: FastAPI, tmp_path: Path) -> None:
    effects = rows(tmp_path / "never.db", "payments")
    reason, remedy = why_not(lambda: assert_idempotent(app, "POST /payments", **PAY, headers=ALICE, effects=effects))
    assert "the rows of 'payments' cannot be counted" in reason
    assert "create the table" in remedy


def test_the_handler_fails(provider: Provider) -> None:
    async def fail(request: Request) -> Response:
        raise RuntimeError("no connection to the bank")

    class Closed(Provider):
        def charge(self, amount: int, key: str = "") -> int:
            raise RuntimeError("no connection to the bank")

    app = Starlette(routes=[Route("/payments", fail, methods=["POST"])])
    reason, remedy = why_not(lambda: assert_idempotent(app, "POST /payments", **PAY, effects=provider.charges))
    assert reason.startswith("the handler failed")
    assert "succeed in the test" in remedy
    wsgi = good.wsgi_app(Engine.connect("memory://"), Closed())
    wsgi.engine.open()
    reason, _ = why_not(lambda: assert_idempotent(wsgi, "POST /payments", **PAY, effects=provider.charges))
    assert reason == "the handler failed: RuntimeError: no connection to the bank"


@pytest.mark.parametrize("every", [2, 3, 5])
def test_the_handler_is_not_deterministic(provider: Provider, every: int) -> None:
    calls = 0

    class Unsteady(Provider):
        def charge(self, amount: int, key: str = "") -> int:
            nonlocal calls
            calls += 1
            if calls % every == 0:
                raise RuntimeError("the bank is busy")
            return provider.charge(amount, key)

    app = good.fastapi_app(AsyncEngine.connect("memory://"), Unsteady())
    reason, remedy = why_not(
        lambda: assert_idempotent(app, "POST /payments", **PAY, headers=ALICE, effects=provider.charges)
    )
    assert reason.startswith("the handler is not deterministic: of equal requests under new keys one came back with")
    assert "no random failures" in remedy


# --- the store and the application's start ---


@pytest.mark.parametrize("make", [good.fastapi_app, good.starlette_app, good.asgi_app])
def test_the_store_is_not_migrated(make: Any, provider: Provider, tmp_path: Path) -> None:
    app = make(AsyncEngine.connect(f"sqlite:///{tmp_path}/new.db"), provider)
    reason, remedy = why_not(lambda: assert_idempotent(app, "POST /payments", **PAY, effects=provider.charges))
    assert reason.startswith("the store is not migrated")
    assert "semel migrate" in remedy


def test_the_store_of_a_wsgi_application_is_not_migrated(provider: Provider, tmp_path: Path) -> None:
    app = good.wsgi_app(Engine.connect(f"sqlite:///{tmp_path}/new.db"), provider)
    reason, remedy = why_not(lambda: assert_idempotent(app, "POST /payments", **PAY, effects=provider.charges))
    assert reason.startswith("the store cannot be used")
    assert "semel migrate" in remedy


def test_an_engine_that_is_never_opened_is_reported(provider: Provider) -> None:
    engine = AsyncEngine.connect("memory://")
    inner = Starlette(
        routes=[Route("/payments", _charging(provider), methods=["POST"])],
    )
    app = SemelMiddleware(inner, engine, caller=single_caller, operations=[Operation("/payments")])
    report = check_idempotent(app, "POST /payments", **PAY, effects=provider.charges)
    assert report.ok  # a memory store needs no opening: it works, and so nothing is wrong


def _charging(provider: Provider) -> Any:
    async def create(request: Request) -> Response:
        return JSONResponse({"id": provider.charge((await request.json())["amount"])})

    return create


def test_the_lifespan_fails(provider: Provider) -> None:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if not hasattr(app.state, "configuration"):
            raise RuntimeError("no configuration")
        yield

    app = Starlette(lifespan=lifespan)
    reason, remedy = why_not(lambda: assert_idempotent(app, "POST /payments", **PAY, effects=provider.charges))
    assert reason == "the application's lifespan failed: RuntimeError: no configuration"
    assert "start the application alone" in remedy


def test_a_forgotten_install_is_reported_with_the_remedy(provider: Provider) -> None:
    app = FastAPI()
    semel = Semel(AsyncEngine.connect("memory://"), caller=single_caller)

    @app.post("/payments")
    @semel.command("payments.create")
    async def create(body: dict[str, int]) -> dict[str, int]:
        return {"id": provider.charge(body["amount"])}

    reason, remedy = why_not(lambda: assert_idempotent(app, "POST /payments", **PAY, effects=provider.charges))
    assert "semel.install(app) was not called" in reason
    assert "once, after you create the application" in remedy


def test_a_refused_connection_is_reported() -> None:
    reason, remedy = why_not(lambda: assert_idempotent("http://127.0.0.1:9", "POST /payments", effects=[]))
    assert reason == "nothing listens at http://127.0.0.1:9"
    assert "start the server" in remedy


def test_keys_have_a_format(provider: Provider) -> None:
    app = good.fastapi_app(AsyncEngine.connect("memory://"), provider, key_format=KeyFormat(pattern="pay-[0-9a-f-]+"))
    case: dict[str, Any] = {**PAY, "headers": ALICE, "other_caller": BOB, "effects": provider.charges}
    reason, remedy = why_not(lambda: assert_idempotent(app, "POST /payments", **case))
    assert "keys of this test are refused" in reason
    assert "new_key=" in remedy
    assert assert_idempotent(app, "POST /payments", **case, new_key=lambda made: f"pay-{made}").ok


# --- what one check needs ---


def test_a_check_without_its_needs_does_not_stop_the_others(app: FastAPI, provider: Provider) -> None:
    with pytest.warns(NotTriedWarning, match=r"^POST /payments of .*no_replay_across_callers: .*other_caller="):
        report = assert_idempotent(app, "POST /payments", **PAY, headers=ALICE, effects=provider.charges)
    assert report.ok
    assert [each.check for each in report.not_tried] == [
        "no_replay_across_callers",
        "stored_answer_never_reaches_the_wrong_caller",
    ]
    assert "other_caller={'Authorization': ...}" in report.not_tried[0].reason


def test_another_caller_without_permission_is_reported(app: FastAPI, provider: Provider) -> None:
    report = check_idempotent(
        app, "POST /payments", **PAY, headers=ALICE, other_caller={"Authorization": ""}, effects=provider.charges
    )
    assert "the other caller is refused (401" in report.not_tried[0].reason


def test_the_changed_payload_is_refused_by_the_application(app: FastAPI, provider: Provider) -> None:
    report = check_idempotent(
        app,
        "POST /payments",
        **PAY,
        changed={"amount": "many"},
        headers=ALICE,
        other_caller=BOB,
        effects=provider.charges,
    )
    assert [each.check for each in report.not_tried] == ["other_payload_refused"]
    assert "give another payload that it accepts" in report.not_tried[0].reason


def test_an_unchangeable_payload_is_reported(provider: Provider) -> None:
    async def create(request: Request) -> Response:
        return JSONResponse({"id": provider.charge(1)})

    app = Starlette(routes=[Route("/payments", create, methods=["POST"])])
    report = check_idempotent(app, "POST /payments", effects=provider.charges)
    assert "give another payload of the same kind" in next(
        each.reason for each in report.not_tried if each.check == "other_payload_refused"
    )


# --- mistakes in the call ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"request": "/payments"}, "must be a method and a path"),
        ({"request": "GET /payments"}, "must be a method and a path"),
        ({"request": "POST /payments", "jsn": {}}, "unknown option 'jsn'; did you mean 'json'"),
        ({"request": "POST /payments", "json": 1, "body": b""}, "json= or body=, not both"),
        ({"request": "POST /payments", "other_caller": {}, "single_caller": True}, "not both"),
        ({"request": "POST /payments", "effects": None}, "effects= is missing"),
        ({"request": "POST /payments", "effects": 3}, "must be a function that returns how often"),
    ],
)
def test_mistakes_in_the_parameters(options: dict[str, Any], message: str) -> None:
    given = {"effects": [], **options}
    with pytest.raises(ConfigurationError, match=message):
        assert_idempotent(Starlette(), given.pop("request"), **given)


@pytest.mark.parametrize("target", ["127.0.0.1:8000", "ftp://x", "http://", 5, object()])
def test_an_invalid_target_is_refused(target: Any) -> None:
    with pytest.raises(ConfigurationError):
        assert_idempotent(target, "POST /payments", effects=[])


def test_a_case_together_with_its_parameters_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not both"):
        assert_idempotent(Starlette(), Case(request="POST /x", effects=[]), effects=[])


def test_a_function_without_a_place_for_the_key() -> None:
    def pay(amount: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"has no parameter 'for the key'.*it has amount"):
        assert_idempotent(pay, arguments={"amount": 1}, effects=[])
    with pytest.raises(ConfigurationError, match="has no parameter 'token'"):
        FunctionTarget(pay, key="token")


def test_a_function_that_wants_other_arguments() -> None:
    def pay(key: str, amount: int) -> None: ...

    reason, _ = why_not(lambda: assert_idempotent(pay, arguments={"amuont": 1}, effects=[]))
    assert reason.startswith("pay() cannot be called with these arguments")


def test_a_loop_other_than_asyncio_is_refused() -> None:
    coroutine = assert_idempotent_async(Starlette(), "POST /x", effects=[])
    with pytest.raises(CannotRun, match="anyio_backend"):
        coroutine.send(None)


def test_the_policy_may_be_given_where_it_cannot_be_seen(provider: Provider) -> None:
    async def create(request: Request) -> Response:
        return JSONResponse({"id": provider.charge(1)})

    app = Starlette(routes=[Route("/payments", create, methods=["POST"])])
    given = check_idempotent(app, "POST /payments", **PAY, effects=provider.charges, policy=Policy(key="optional"))
    plain = check_idempotent(app, "POST /payments", **PAY, effects=provider.charges)
    assert "missing_key_refused" in given.held
    assert "missing_key_refused" in [each.check for each in plain.findings]


def test_every_change_of_the_case_is_applied() -> None:
    assert alter({"a": "x", "b": 2.5}) == {"a": "x", "b": 3.5}
    assert alter({"a": {"b": [1]}}) == {"a": {"b": [2]}}
    assert alter({"a": "x", "to": {"account": 7}}, ("to.account",)) == {"a": "x", "to": {"account": 8}}
    assert alter({"a": "x"}, ("to.account",)) == {"a": "x", "to": {"account": 1}}
    assert alter(None) == 1
