"""One declared endpoint under several paths: each path is a command of its own, unless they were declared as one."""

from __future__ import annotations

import asyncio
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from fastapi import APIRouter, Depends, FastAPI, Path
from pydantic import StringConstraints
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from semel import AsyncEngine, Recipe
from semel.errors import ConfigurationError
from semel.integrations.fastapi import Semel as FastApiSemel
from semel.integrations.starlette import Semel
from tests.integrations.conftest import Serve
from tests.integrations.driving import Web, caller_of

REUSED = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
Paths = Literal["apart", "one"] | None


def fastapi(engine: AsyncEngine, prefixes: tuple[str, ...], paths: Paths = None, **options: Any) -> FastAPI:
    app, router, semel = FastAPI(), APIRouter(), FastApiSemel(engine, caller=caller_of)

    @router.post("/payments", status_code=201)
    @semel.command("payments.create", effects="idempotent", paths=paths, **options)
    async def create(request: Request) -> dict[str, str]:
        return {"path": request.url.path}

    for prefix in prefixes:
        app.include_router(router, prefix=prefix)
    semel.install(app)
    return app


def starlette(engine: AsyncEngine, prefixes: tuple[str, ...], paths: Paths = None, **options: Any) -> Starlette:
    semel = Semel(engine, caller=caller_of)

    @semel.command("payments.create", effects="idempotent", paths=paths, **options)
    async def create(request: Request) -> Response:
        return Response(request.url.path, status_code=201)

    app = Starlette(routes=[Route(f"{prefix}/payments", create, methods=["POST"]) for prefix in prefixes])
    semel.install(app)
    return app


def mount(engine: AsyncEngine, prefixes: tuple[str, ...], paths: Paths = None, **options: Any) -> Starlette:
    semel = Semel(engine, caller=caller_of)

    @semel.command("payments.create", effects="idempotent", paths=paths, **options)
    async def create(request: Request) -> Response:
        return Response(request.url.path, status_code=201)

    app = Starlette(routes=[Mount(each, routes=[Route("/payments", create, methods=["POST"])]) for each in prefixes])
    semel.install(app)
    return app


MAKERS = [fastapi, starlette, mount]
TWO = ("/eu", "/us")


@pytest.mark.parametrize("make", MAKERS)
def test_the_second_path_does_not_get_the_answer_of_the_first(serve: Serve, engine: AsyncEngine, make: Any) -> None:
    web = serve(make(engine, TWO), engine)
    first = web.call("/eu/payments", {"amount": 1})
    assert (first.status, b"/eu/payments" in first.body) == (201, True)
    assert web.call("/us/payments", {"amount": 1}).code == REUSED
    assert web.call("/eu/payments", {"amount": 1}).replayed
    assert b"/us/payments" in web.call("/us/payments", {"amount": 1}, key="another-key").body


@pytest.mark.parametrize("make", MAKERS)
def test_paths_that_were_declared_as_one_share_their_answers(serve: Serve, engine: AsyncEngine, make: Any) -> None:
    web = serve(make(engine, TWO, "one"), engine)
    assert b"/eu/payments" in web.call("/eu/payments", {"amount": 1}).body
    assert web.call("/us/payments", {"amount": 1}).replayed


def test_a_trailing_slash_is_not_a_second_path(serve: Serve, engine: AsyncEngine) -> None:
    app, semel = FastAPI(), FastApiSemel(engine, caller=caller_of)

    @app.post("/payments")
    @app.post("/payments/")
    @semel.command("payments.create", effects="idempotent")
    async def create() -> str:
        return "paid"

    semel.install(app)
    web = serve(app, engine)
    assert not web.call("/payments").replayed
    assert web.call("/payments/").replayed


def swap(web: Web, app: Any) -> None:
    """A release: another application over the same store, whose lifespan has looked at its routes."""
    web.app = app
    web.runner.run(web._lifespan.__aexit__(None, None, None))
    web._lifespan = app.router.lifespan_context(app)
    web.runner.run(web._lifespan.__aenter__())


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("recipe", [Recipe(), Recipe(json_depth_max=32)])
def test_records_from_before_the_second_path_are_replayed(
    serve: Serve, tmp_path: Any, make: Any, recipe: Recipe
) -> None:
    engine = AsyncEngine.connect(f"sqlite:///{tmp_path}/a.db")
    asyncio.run(_migrate(engine))
    web = serve(make(engine, ("/eu",), fingerprint=recipe), engine)
    assert not web.call("/eu/payments", {"amount": 1}).replayed
    swap(web, make(engine, TWO, fingerprints_known=(recipe,)))
    assert web.call("/eu/payments", {"amount": 1}).replayed
    assert web.call("/eu/payments", {"amount": 2}).code == REUSED
    assert not web.call("/us/payments", {"amount": 1}, key="later").replayed
    # The second path goes again: "apart" still knows what was recorded meanwhile.
    swap(web, make(engine, ("/us",), "apart"))
    assert web.call("/us/payments", {"amount": 1}, key="later").replayed
    swap(web, make(engine, ("/us",)))
    assert web.call("/us/payments", {"amount": 1}, key="later").code == "IDEMPOTENCY_RECORD_UNREADABLE"


async def _migrate(engine: AsyncEngine) -> None:
    await engine.migrate()
    await engine.close()


@pytest.mark.parametrize(
    ("kind", "spellings"),
    [
        (int, ("7", "07", "+7", "7.0")),
        (
            UUID,
            ("0000000a-0000-4000-8000-00000000000b", "0000000A-0000-4000-8000-00000000000B", f"{0xA:08x}{'0' * 24}"),
        ),
    ],
)
def test_a_key_in_the_path_is_the_value_that_the_endpoint_gets(
    serve: Serve, engine: AsyncEngine, kind: type, spellings: tuple[str, ...]
) -> None:
    app, semel, paid = FastAPI(), FastApiSemel(engine, caller=caller_of), []

    async def pay(number: Any) -> str:
        paid.append(number)
        return "paid"

    pay.__annotations__["number"] = kind
    declared = semel.command("invoices.pay", effects="idempotent", key_from="path:number")(pay)
    app.post("/invoices/{number}/pay")(declared)
    semel.install(app)
    web = serve(app, engine)
    for spelled in spellings:
        assert web.call(f"/invoices/{spelled}/pay").status == 200
    assert len(paid) == len(set(paid)), paid


def read_number(number: int) -> int:
    return number


class Colour(StrEnum):
    RED = "red"

    @classmethod
    def _missing_(cls, value: object) -> Colour | None:
        return cls.RED if value == "RED" else None


@pytest.mark.parametrize(
    ("kind", "spellings"),
    [
        (Annotated[int, Depends(read_number)], ("7", "07", "+7", "7.0")),
        (Annotated[int, Path(alias="number")], ("7", "07")),
        (Annotated[str, StringConstraints(to_upper=True, strip_whitespace=True)], ("a-7", "A-7", " A-7")),
        (date, ("2026-01-01", "1767225600")),
        (datetime, ("2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00", "1767225600")),
        (timedelta, ("PT90S", "PT1M30S", "00:01:30")),
        (Decimal, ("7", "7.0", "07.00")),
        (float, ("7", "7.0", "70e-1")),
        (bool, ("true", "1", "yes")),
        (Colour, ("red", "RED")),
    ],
)
def test_a_key_in_the_path_is_one_key_in_every_spelling(
    serve: Serve, engine: AsyncEngine, kind: Any, spellings: tuple[str, ...]
) -> None:
    app, semel, paid = FastAPI(), FastApiSemel(engine, caller=caller_of), []

    async def pay(given: Any) -> str:
        paid.append(given)
        return "paid"

    named = hasattr(kind, "__metadata__") and not isinstance(kind.__metadata__[0], StringConstraints)
    pay.__annotations__["given"] = kind if named else Annotated[kind, Path(alias="number")]
    declared = semel.command("invoices.pay", effects="idempotent", key_from="path:number")(pay)
    app.post("/invoices/{number}/pay")(declared)
    semel.install(app)
    web = serve(app, engine)
    statuses = [web.call(f"/invoices/{spelled}/pay").status for spelled in spellings]
    assert set(statuses) == {200}, statuses
    assert len(paid) == 1, paid


@pytest.mark.parametrize("place", ["router", "include_router", "app"])
def test_a_key_in_the_path_is_what_a_dependency_of_the_router_reads(
    serve: Serve, engine: AsyncEngine, place: str
) -> None:
    reads, paid = [Depends(read_number)], []
    app = FastAPI(dependencies=reads if place == "app" else None)
    router = APIRouter(prefix="/invoices/{number}", dependencies=reads if place == "router" else None)
    semel = FastApiSemel(engine, caller=caller_of)

    @router.post("/pay")
    @semel.command("invoices.pay", effects="idempotent", key_from="path:number")
    async def pay(number: str) -> str:
        paid.append(number)
        return "paid"

    app.include_router(router, dependencies=reads if place == "include_router" else None)
    semel.install(app)
    web = serve(app, engine)
    assert [web.call(f"/invoices/{spelled}/pay").status for spelled in ("7", "07")] == [200, 200]
    assert paid == ["7"]


def test_an_impossible_declaration_is_refused(engine: AsyncEngine) -> None:
    with pytest.raises(ConfigurationError, match=r"payments: paths must be 'apart' or 'one'; it is 'both'"):
        Semel(engine, caller=caller_of).command("payments", paths="both")  # type: ignore[arg-type]
