"""FastAPI: commands anywhere in an application, of anything that it calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI

from semel import AsyncEngine, Permit
from semel.integrations.fastapi import Semel
from tests.integrations.conftest import Serve
from tests.integrations.driving import both, caller_of
from tests.integrations.fastapi_made import PAYMENT, Made, Payment, authenticate

REUSED = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"


@pytest.fixture
def service(serve: Serve, engine: AsyncEngine) -> Made:
    return Made(serve, engine)


def _direct(app: FastAPI) -> tuple[Any, str]:
    return app, "/payments"


def _include(app: FastAPI) -> tuple[Any, str]:
    router = APIRouter()
    app.include_router(router)
    return router, "/payments"


def _prefix(app: FastAPI) -> tuple[Any, str]:
    router = APIRouter(prefix="/api")
    app.include_router(router, prefix="/v1")
    return router, "/v1/api/payments"


def _nest(app: FastAPI) -> tuple[Any, str]:
    inner, outer = APIRouter(prefix="/inner"), APIRouter(prefix="/outer")
    outer.include_router(inner, prefix="/between")
    app.include_router(outer, prefix="/v1")
    return inner, "/v1/outer/between/inner/payments"


def _mount(app: FastAPI) -> tuple[Any, str]:
    sub = FastAPI()
    app.mount("/sub", sub)
    return sub, "/sub/payments"


PLACES = [_direct, _include, _prefix, _nest, _mount]


@pytest.mark.parametrize("place", PLACES)
def test_the_endpoint_may_be_anywhere(
    serve: Serve, engine: AsyncEngine, place: Callable[[FastAPI], tuple[Any, str]]
) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    router: FastAPI
    router, path = place(app)
    ran = []

    @router.post("/payments", status_code=201)
    @semel.command("payments.create")
    async def create_payment(payment: Payment, permit: Permit = semel.permit) -> str:
        ran.append(permit.operation_id)
        return "paid"

    semel.install(app)
    web = serve(app, engine)
    both(web, path, PAYMENT)
    assert web.call(path, {"amount": 1}).code == REUSED
    assert len(ran) == 1


class Callable_:
    def __init__(self, ran: list[int]) -> None:
        self.ran = ran

    async def __call__(self, payment: Payment, permit: Permit = Semel.permit) -> dict[str, str]:
        self.ran.append(payment.amount)
        return {"by": permit.command.scope.operation}

    async def method(self, payment: Payment, permit: Permit = Semel.permit) -> dict[str, str]:
        return await self(payment, permit)

    def sync_method(self, payment: Payment, permit: Permit = Semel.permit) -> dict[str, str]:
        self.ran.append(payment.amount)
        return {"by": permit.command.scope.operation}


class SyncCallable(Callable_):
    def __call__(self, payment: Payment, permit: Permit = Semel.permit) -> Any:
        return self.sync_method(payment, permit)


async def pay_given(ran: list[int], payment: Payment, permit: Permit = Semel.permit) -> dict[str, str]:
    ran.append(payment.amount)
    return {"by": permit.command.scope.operation}


def given_sync(ran: list[int], payment: Payment, permit: Permit = Semel.permit) -> dict[str, str]:
    ran.append(payment.amount)
    return {"by": permit.command.scope.operation}


@pytest.mark.parametrize(
    "make",
    [
        Callable_,
        SyncCallable,
        lambda ran: Callable_(ran).method,
        lambda ran: Callable_(ran).sync_method,
        lambda ran: functools.partial(pay_given, ran),
        lambda ran: functools.partial(given_sync, ran),
        lambda ran: functools.partial(Callable_(ran)),
    ],
    ids=["instance", "sync-instance", "method", "sync-method", "partial", "sync-partial", "partial-of-instance"],
)
def test_the_endpoint_may_be_anything_that_fastapi_calls(
    serve: Serve, engine: AsyncEngine, make: Callable[[list[int]], Any]
) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    ran: list[int] = []
    app.post("/payments", status_code=201)(semel.command("payments.create")(make(ran)))
    semel.install(app)
    web = serve(app, engine)
    first, _ = both(web, "/payments", PAYMENT)
    assert (first.status, first.body, ran) == (201, b'{"by":"payments.create"}', [1250])


def test_the_same_key_on_two_operations_is_two_commands(serve: Serve, engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    ran = []

    @app.post("/payments")
    @semel.command("payments.create")
    async def create_payment(payment: Payment) -> None:
        ran.append("payment")

    @app.post("/refunds")
    @semel.command("refunds.create")
    def create_refund(payment: Payment) -> None:
        ran.append("refund")

    semel.install(app)
    web = serve(app, engine)
    for path in ("/payments", "/refunds"):
        both(web, path, PAYMENT)
    assert ran == ["payment", "refund"]


def test_path_parameters_and_query_are_part_of_the_request(serve: Serve, engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()

    @app.put("/payments/{number}")
    @semel.command("payments.put")
    async def put_payment(number: int, dry: bool = False) -> int:
        return number

    semel.install(app)
    web = serve(app, engine)
    both(web, "/payments/7", method="PUT", query="dry=1")
    assert web.call("/payments/8", method="PUT", query="dry=1").code == REUSED
    assert web.call("/payments/7", method="PUT", query="dry=0").code == REUSED
    # FastAPI makes the number of it only after routing: another spelling is another request, and loudly so.
    assert web.call("/payments/007", method="PUT", query="dry=1").code == REUSED


def test_dependency_overrides_still_work(service: Made) -> None:
    service.app.dependency_overrides[authenticate] = lambda: None
    assert service.web.call("/payments", PAYMENT, caller=None).code == "IDEMPOTENCY_CALLER_UNKNOWN"
    assert service.web.call("/payments", PAYMENT).status == 201


def test_dependencies_run_for_every_retry(serve: Serve, engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    done = []

    @app.post("/payments", dependencies=[Depends(lambda: done.append("dependency"))])
    @semel.command("payments.create")
    async def create_payment() -> None:
        done.append("endpoint")

    semel.install(app)
    both(serve(app, engine), "/payments")
    assert done == ["dependency", "endpoint", "dependency"]


def test_without_its_optional_key_a_command_runs_unprotected(serve: Serve, engine: AsyncEngine) -> None:
    semel, app = Semel(engine, caller=caller_of), FastAPI()
    permits = []

    @app.post("/notes")
    @semel.command("notes.create", effects="idempotent", key="optional")
    async def create_note(payment: Payment, permit: Permit | None = semel.permit) -> None:
        permits.append(permit)

    semel.install(app)
    web = serve(app, engine)
    assert [web.call("/notes", PAYMENT, key=None).status for _ in range(2)] == [200, 200]
    assert (permits, web.records()) == ([None, None], [])
