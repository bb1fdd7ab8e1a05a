"""All fourteen checks on a server's database: its clock is the test's, so crashes and expiries are tried as well."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from semel import AsyncEngine, AsyncPermit, Permit
from semel.http import from_state
from semel.integrations.fastapi import Semel
from semel.stores.urls import connect_backend
from semel.testing.clock import SettableClock
from semel.testing.idempotent import check_idempotent
from semel.testing.pytest_plugin import _backend
from tests.outbox.conftest import Place, make_place
from tests.servers import mariadb
from tests.testing_plugin.good import ALICE, BOB, Provider

URLS = ["postgresql", "postgresql+asyncpg", pytest.param("mysql", marks=mariadb.MARK)]

OTHERS: list[dict[str, Any]] = [
    {"effects": "external"},
    {"effects": "idempotent"},
    {"steps": True},
    {"steps": True, "resumable": True},
]


@pytest.fixture(params=URLS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A test's own database, under the scheme of each client library."""
    place = make_place("mariadb" if request.param == "mysql" else "postgres", tmp_path)
    place.url = request.param + place.url[place.url.index(":") :]
    return place


@pytest.fixture
def engine(place: Place, tmp_path: Path) -> AsyncEngine:
    return AsyncEngine(_backend(place.url, tmp_path / "none.db", SettableClock()))


def shop(engine: AsyncEngine, declare: Callable[[Semel], Callable[..., Awaitable[Any]]]) -> FastAPI:
    app, semel = FastAPI(), Semel(engine, caller=from_state("user"))

    @app.middleware("http")
    async def authenticate(request: Any, call_next: Any) -> Any:
        request.state.user = request.headers.get("authorization")
        return await call_next(request)

    app.post("/orders", status_code=201)(declare(semel))
    semel.install(app, reap=False)
    return app


def test_an_atomic_endpoint_is_tried_with_its_own_database(engine: AsyncEngine, place: Place) -> None:
    def declare(semel: Semel) -> Callable[..., Awaitable[Any]]:
        @semel.command("orders.create", effects="atomic")
        async def create(
            order: dict[str, int], permit: Permit = semel.permit, session: AsyncSession = semel.atomic_session
        ) -> dict[str, int]:
            await session.execute(text("INSERT INTO effect SELECT coalesce(max(n), 0) + 1 FROM effect"))
            permit.emit("orders.placed", order)
            return order

        return create

    def count() -> int:
        return int(place.rows("SELECT count(*) FROM effect")[0][0])

    app = shop(engine, declare)
    report = check_idempotent(app, "POST /orders", json={"sku": 7}, headers=ALICE, other_caller=BOB, effects=count)
    assert (len(report.held), report.findings, report.not_tried) == (14, (), ()), report.text()


@pytest.mark.parametrize("options", OTHERS)
def test_other_effects_are_tried_on_a_servers_database(options: dict[str, Any], engine: AsyncEngine) -> None:
    provider = Provider()

    def declare(semel: Semel) -> Callable[..., Awaitable[Any]]:
        @semel.command("orders.create", **options)
        async def create(order: dict[str, int], permit: AsyncPermit = semel.permit) -> dict[str, int]:
            key = permit.key_for("charge")
            if options.get("steps"):
                await permit.step("charge", lambda: provider.charge(order["sku"], key), repeat=True)
            else:
                provider.charge(order["sku"], key)
            return order

        return create

    app = shop(engine, declare)
    report = check_idempotent(
        app, "POST /orders", json={"sku": 7}, headers=ALICE, other_caller=BOB, effects=provider.charges
    )
    assert (len(report.held), report.findings, report.not_tried) == (14, (), ()), report.text()


def test_the_clock_of_a_database_that_may_be_shared_is_not_moved(place: Place) -> None:
    def declare(semel: Semel) -> Callable[..., Awaitable[Any]]:
        @semel.command("orders.create", effects="idempotent")
        async def create(order: dict[str, int], permit: Permit = semel.permit) -> dict[str, int]:
            provider.charge(order["sku"], permit.key_for("charge"))
            return order

        return create

    provider = Provider()
    app = shop(AsyncEngine(connect_backend(place.url)), declare)
    report = check_idempotent(
        app, "POST /orders", json={"sku": 7}, headers=ALICE, other_caller=BOB, effects=provider.charges
    )
    assert report.findings == ()
    assert {each.check for each in report.not_tried} == {
        "failure_before_the_effect",
        "failure_after_the_effect",
        "expired_key",
    }
    assert "semel_store" in report.not_tried[0].reason
