"""Endpoints that are safe to retry pass through every target; checks that cannot run are reported as not tried."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from semel import AsyncEngine, Engine, Permit, Policy
from semel.functions import command
from semel.http.asgi.middleware import SemelMiddleware as AsgiMiddleware
from semel.http.caller import single_caller
from semel.http.routing import Operation
from semel.integrations.fastapi import Semel
from semel.testing.idempotent import (
    Case,
    FunctionTarget,
    NotIdempotent,
    NotTriedWarning,
    Report,
    Spy,
    assert_idempotent,
    assert_idempotent_async,
    check_idempotent,
    rows,
)
from semel.testing.required import REQUIRED
from tests.testing_plugin import good
from tests.testing_plugin.good import ALICE, BOB, Provider

PAY: dict[str, Any] = {"json": {"amount": 1250}}


def everything(report: Report) -> None:
    assert report.held == REQUIRED, report.text()
    assert report.not_tried == ()


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def memory() -> AsyncEngine:
    return AsyncEngine.connect("memory://")


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine.connect("memory://") as engine:
        yield engine


@pytest.mark.parametrize(
    "policy",
    [
        {"effects": "external"},
        {"effects": "idempotent"},
        {"effects": "external", "key": "optional"},
        {"effects": "external", "after_expiry": "new"},
        {"effects": "external", "on_error": "replay"},
        {"effects": "idempotent", "dedup_for_seconds": 10},  # forgotten before the lease lapses: UNKNOWN, as declared
    ],
    ids=str,
)
def test_fastapi(policy: dict[str, Any], memory: AsyncEngine, provider: Provider) -> None:
    app = good.fastapi_app(memory, provider, **policy)
    everything(
        assert_idempotent(app, "POST /payments", **PAY, headers=ALICE, other_caller=BOB, effects=provider.charges)
    )


def test_one_application_can_be_tried_again(memory: AsyncEngine, provider: Provider) -> None:
    app = good.fastapi_app(memory, provider)
    case = Case(request="POST /payments", **PAY, headers=ALICE, other_caller=BOB, effects=lambda: len(provider.charges))
    for _ in range(2):
        everything(assert_idempotent(app, case))


@pytest.mark.parametrize("settings", ["", "?synchronous=NORMAL"])
def test_atomic_on_a_file_that_others_have_used(settings: str, tmp_path: Path) -> None:
    database = tmp_path / "app.db"
    before = Engine.connect(f"sqlite:///{database}")
    before.migrate()
    before.close()
    good.create_table(database)
    app = good.atomic_app(AsyncEngine.connect(f"sqlite:///{database}{settings}"))
    everything(assert_idempotent(app, "POST /payments", **PAY, effects=rows(database, "payments")))


def test_starlette(memory: AsyncEngine, provider: Provider) -> None:
    report = assert_idempotent(good.starlette_app(memory, provider), "POST /payments", **PAY, effects=provider.charges)
    everything(report)
    assert any("key is optional" in remark for remark in report.remarks)


def test_asgi_without_a_framework(memory: AsyncEngine, provider: Provider) -> None:
    report = assert_idempotent(good.asgi_app(memory, provider), "POST /payments", **PAY, effects=provider.charges)
    everything(report)
    assert any("after_expiry='new'" in remark for remark in report.remarks)


@pytest.mark.parametrize("make", [good.flask_app, good.wsgi_app])
def test_wsgi(make: Any, engine: Engine, provider: Provider) -> None:
    headers = {"Content-Type": "application/json"}
    app = make(engine, provider)
    everything(
        assert_idempotent(app, "POST /payments", body=b'{"amount": 5}', headers=headers, effects=provider.charges)
    )


@pytest.mark.parametrize("effects", ["external", "idempotent"])
def test_functions(effects: Any, engine: Engine, provider: Provider) -> None:
    policy = Policy(effects=effects)
    target = FunctionTarget(good.function(engine, provider, policy), engine=engine, policy=policy)
    other = {"caller": "bob"}
    everything(assert_idempotent(target, arguments={"amount": 5}, other_caller=other, effects=provider.charges))


def test_an_async_function_within_its_own_loop(provider: Provider) -> None:
    async def main() -> Report:
        policy = Policy(effects="idempotent")
        async with AsyncEngine.connect("memory://") as engine:
            target = FunctionTarget(good.async_function(engine, provider, policy), engine=engine, policy=policy)
            counting = Spy(provider.charge)
            assert counting.count == 0
            return await assert_idempotent_async(
                target, arguments={"amount": 5}, other_caller={"caller": "bob"}, effects=provider.charges
            )

    everything(asyncio.run(main()))


def test_a_function_whose_engine_is_not_given(engine: Engine, provider: Provider) -> None:
    with pytest.warns(NotTriedWarning, match=r"failure_after_the_effect, expired_key, bulk_retry_\w+: the store"):
        report = assert_idempotent(
            good.function(engine, provider, Policy()),
            arguments={"amount": 5},
            other_caller={"caller": "bob"},
            effects=provider.charges,
        )
    assert [each.check for each in report.not_tried] == [
        "failure_before_the_effect",
        "failure_after_the_effect",
        "expired_key",
        "event_identity_stable_over_replay",
        "bulk_retry_does_not_rerun_finished_items",
    ]
    assert "FunctionTarget(function, engine=..., policy=...)" in report.not_tried[0].reason


def test_a_check_inside_a_running_loop_uses_a_thread(memory: AsyncEngine, provider: Provider) -> None:
    async def main() -> Report:
        app = good.starlette_app(memory, provider)
        return assert_idempotent(app, "POST /payments", **PAY, effects=provider.charges)

    everything(asyncio.run(main()))


# --- a running server ---


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 50


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """The output is not read."""

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            """The client has gone, as some do here."""


@contextmanager
def serve_app(app: Any) -> Iterator[str]:
    with make_server("127.0.0.1", 0, app, Server, Quiet) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_a_running_server(engine: Engine, provider: Provider) -> None:
    headers = {"Content-Type": "application/json"}
    with (
        serve_app(good.flask_app(engine, provider)) as url,
        pytest.warns(NotTriedWarning, match="out of reach; give the"),
    ):
        report = assert_idempotent(
            url, "POST /payments", **PAY, headers=headers, effects=provider.charges, single_caller=True
        )
    assert [each.check for each in report.not_tried] == [
        "failure_before_the_effect",
        "failure_after_the_effect",
        "expired_key",
        "event_identity_stable_over_replay",
        "bulk_retry_does_not_rerun_finished_items",
    ]
    assert "out of reach" in report.not_tried[0].reason


def test_a_running_server_without_protection(provider: Provider) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        provider.charge(1)
        start_response("200 OK", [("Content-Length", "4")])
        return [b"paid"]

    with serve_app(app) as url, pytest.raises(NotIdempotent, match="the effect happened 8 times"):
        assert_idempotent(url, "POST /payments", **PAY, effects=provider.charges)


# --- counting ---


def test_counters_of_every_kind(memory: AsyncEngine, tmp_path: Path) -> None:
    provider = Provider()
    spy = Spy(provider.charge)
    provider.charge = spy  # type: ignore[method-assign]
    app = good.starlette_app(memory, provider)

    async def count_async() -> int:
        return spy.count

    for counter in (spy, lambda: spy.count, count_async, spy.calls):
        everything(assert_idempotent(app, "POST /payments", **PAY, effects=counter))


def test_a_request_with_several_effects(memory: AsyncEngine, provider: Provider) -> None:
    app = good.starlette_app(memory, provider)
    report = assert_idempotent(app, "POST /payments", **PAY, effects=lambda: 3 * len(provider.charges))
    everything(report)
    assert any("grew the effect counter by 3; that counts as one effect" in remark for remark in report.remarks)


def test_an_effect_partly_outside_of_the_claim_is_reported_with_counts(provider: Provider) -> None:
    """The tutorial's own fault: a charge in a dependency, beside the one in the handler."""
    app, semel = FastAPI(), Semel(AsyncEngine.connect("memory://"), caller=single_caller)

    @app.post("/payments", dependencies=[Depends(lambda: provider.charge(0))])
    @semel.command("payments.create", effects="external")
    async def pay(payment: dict[str, int]) -> int:
        return provider.charge(payment["amount"])

    semel.install(app)
    report = check_idempotent(app, "POST /payments", **PAY, effects=provider.charges)
    said = report.text()
    assert "0.5 times" not in said
    [retry] = [each for each in report.findings if each.check == "same_key_and_payload_replays"]
    assert "the counter grew by 1 again; a normal request grows it by 2" in retry.came
    assert "a part of the effect is outside the protected handler" in retry.change
    assert any("the first request grew the effect counter by 2" in remark for remark in report.remarks)


def test_payloads_that_must_differ_from_command_to_command(memory: AsyncEngine, provider: Provider) -> None:
    taken: set[int] = set()

    class Once(Provider):
        def charge(self, amount: int, key: str = "") -> int:
            assert amount not in taken, "this order exists already"
            taken.add(amount)
            return super().charge(amount)

    once = Once()
    app = good.starlette_app(memory, once)

    def payload(number: int) -> dict[str, int]:
        return {"amount": number}

    for changed in ({"amount": 10_000}, lambda number: {"amount": number + 10_000}):
        taken.clear()
        report = assert_idempotent(app, "POST /payments", json=payload, changed=changed, effects=once.charges)
        everything(report)


def test_a_client_that_rebuilds_its_request_for_each_attempt_fails(memory: AsyncEngine, provider: Provider) -> None:
    moments = iter(range(1000))
    report = check_idempotent(
        good.starlette_app(memory, provider),
        "POST /payments",
        json=lambda: {"amount": 1, "at": next(moments)},
        effects=provider.charges,
    )
    [first, *_] = report.findings
    assert first.check == "same_key_and_payload_replays"
    assert "something changes the request between two attempts" in first.change


# --- declared functions ---


@pytest.mark.parametrize("effects", ["external", "idempotent"])
def test_a_declared_function_knows_its_engine_and_its_policy(effects: Any, engine: Engine, provider: Provider) -> None:
    @command(engine, "payments.charge", caller="customer", effects=effects)
    def charge(amount: int, customer: str = "alice", permit: Permit | None = None) -> str:
        key = permit.key_for("charge") if permit is not None else ""
        return f"payment {provider.charge(amount, key)}"

    other = {"customer": "bob"}
    everything(assert_idempotent(charge, arguments={"amount": 5}, other_caller=other, effects=provider.charges))


def test_a_declared_function_whose_key_is_in_its_arguments(engine: Engine, provider: Provider) -> None:
    @command(engine, "orders.pay", key="order.id", caller="order.customer")
    def pay(order: dict[str, Any]) -> int:
        return provider.charge(order["amount"])

    def order(number: int) -> dict[str, Any]:
        return {"order": {"amount": number, "customer": "alice"}}

    report = check_idempotent(
        FunctionTarget(pay, key="order.id"),
        arguments=order,
        changed={"order": {"amount": 10_000, "customer": "alice"}},
        single_caller=True,
        effects=provider.charges,
    )
    everything(report)


def test_an_async_declared_function(provider: Provider) -> None:
    async def main() -> Report:
        async with AsyncEngine.connect("memory://") as engine:

            @command(engine, "payments.charge", caller="customer")
            async def charge(amount: int, customer: str = "alice") -> int:
                return provider.charge(amount)

            return await assert_idempotent_async(
                charge, arguments={"amount": 5}, other_caller={"customer": "bob"}, effects=provider.charges
            )

    everything(asyncio.run(main()))


def test_a_declared_function_with_a_false_declaration_fails(engine: Engine, provider: Provider) -> None:
    @command(engine, "payments.charge", caller=single_caller, effects="idempotent")
    def charge(amount: int) -> int:
        return provider.charge(amount)

    report = check_idempotent(charge, arguments={"amount": 5}, single_caller=True, effects=provider.charges)
    [finding] = report.findings
    assert finding.check == "failure_after_the_effect"
    assert "permit.key_for('charge')" in finding.change


def test_a_mounted_application(memory: AsyncEngine, provider: Provider) -> None:
    async def create(request: Request) -> Response:
        return JSONResponse({"id": provider.charge((await request.json())["amount"])})

    inner = Starlette(routes=[Route("/pay/{number:int}", create, methods=["POST"])])
    guarded = AsgiMiddleware(inner, memory, caller=single_caller, operations=[Operation("/pay/{number}")])
    app = Starlette(routes=[Mount("/api", guarded)])
    everything(assert_idempotent(app, "POST /api/pay/7?x=1", **PAY, effects=provider.charges))
