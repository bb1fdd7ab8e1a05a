"""A developer's mistakes are met when the application is built or started, with the remedy in the message."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from semel import Answer, AsyncEngine, Command, Engine, Permit, Policy, Scope
from semel.errors import ConfigurationError, OutcomeUnknownError, PolicyError
from semel.http.asgi.middleware import SemelMiddleware
from semel.http.caller import single_caller
from semel.http.wsgi.middleware import SemelMiddleware as WsgiMiddleware
from semel.integrations.fastapi import Semel
from semel.integrations.starlette import Semel as StarletteSemel

SCOPE = Scope("acme", "alice", "notes.create")


def test_decorators_in_the_wrong_order_are_refused_at_install() -> None:
    app, semel = FastAPI(), Semel(AsyncEngine.connect("memory://"), caller=single_caller)

    @semel.command("notes.create")
    @app.post("/notes")
    async def create_note() -> None: ...

    with pytest.raises(ConfigurationError, match=r"'notes\.create' is not protected: write @semel\.command below"):
        semel.install(app)


def test_decorators_in_the_wrong_order_are_refused_at_start_up_too() -> None:
    app, semel = FastAPI(), Semel(AsyncEngine.connect("memory://"), caller=single_caller)
    semel.install(app)
    router = APIRouter()

    @semel.command("notes.create")
    @router.post("/notes")
    async def create_note() -> None: ...

    app.include_router(router)

    async def start() -> None:
        async with app.router.lifespan_context(app):
            raise AssertionError("it must not start")

    with pytest.raises(ConfigurationError, match="below the framework's decorator"):
        asyncio.run(start())


@pytest.mark.parametrize("methods", [["GET"], ["GET", "POST"], ["POST", "OPTIONS"]])
@pytest.mark.parametrize("included", [False, True])
def test_a_command_with_a_safe_method_is_refused_at_install(methods: list[str], included: bool) -> None:
    app, semel = FastAPI(), Semel(AsyncEngine.connect("memory://"), caller=single_caller)
    router = APIRouter() if included else app

    @router.api_route("/notes", methods=methods)
    @semel.command("notes.list")
    async def notes() -> None: ...

    if isinstance(router, APIRouter):
        app.include_router(router, prefix="/v1")
    with pytest.raises(
        ConfigurationError, match=r"'notes\.list' is routed to by (GET|OPTIONS), which is not a command; rou"
    ):
        semel.install(app)


def test_starlette_routes_by_get_unless_methods_are_given() -> None:
    semel = StarletteSemel(AsyncEngine.connect("memory://"), caller=single_caller)

    @semel.command("notes.create")
    async def create(request: Request) -> Response:
        return Response()

    class Notes(HTTPEndpoint):
        @semel.command("notes.list")
        async def get(self, request: Request) -> Response:
            return Response()

    for routes in ([Route("/notes", create)], [Route("/notes", Notes)], [Mount("/v1", routes=[Route("/n", create)])]):
        with pytest.raises(ConfigurationError, match=r"is routed to by GET.*methods=\['POST'\]"):
            semel.install(Starlette(routes=routes))
    semel.install(Starlette(routes=[Route("/notes", create, methods=["POST"])]))


def test_a_permit_without_its_default_is_refused_with_the_line_to_write() -> None:
    semel = Semel(AsyncEngine.connect("memory://"), caller=single_caller)

    async def create(permit: Permit) -> None: ...

    async def optional(mine: Permit | None = None) -> None: ...

    for endpoint, line in ((create, "permit: Permit = semel.permit"), (optional, "mine: Permit = semel.permit")):
        with pytest.raises(ConfigurationError, match=f"without a default, so that it gets no value; write {line}"):
            semel.command(f"notes.{line}")(endpoint)


def test_the_other_kind_of_engine_is_refused() -> None:
    sync: Any = Engine.connect("memory://")
    aio: Any = AsyncEngine.connect("memory://")
    for build in (
        lambda: Semel(sync, caller=single_caller),
        lambda: SemelMiddleware(FastAPI(), sync, caller=single_caller),
        lambda: WsgiMiddleware(lambda environ, start: [], aio, caller=single_caller),
    ):
        with pytest.raises(ConfigurationError, match=r"needs an? (AsyncEngine|semel\.Engine)"):
            build()


@pytest.mark.parametrize(("key", "fingerprint"), [("", bytes(32)), ("k", b"x"), ("k", b"")])
def test_a_command_without_a_key_or_with_half_a_fingerprint_is_refused(key: str, fingerprint: bytes) -> None:
    with pytest.raises(PolicyError, match=r"key must be|fingerprint must be"):
        Command(SCOPE, key, fingerprint, "v1", Policy())


@pytest.mark.parametrize("recipe", [None, b"v1", 1])
def test_a_command_whose_recipe_is_no_text_is_refused(recipe: Any) -> None:
    with pytest.raises(PolicyError, match="recipe must be a text"):
        Command(SCOPE, "k", bytes(32), recipe, Policy())


def test_a_handler_that_returns_no_answer_is_reported_and_its_command_settled() -> None:
    command = Command(SCOPE, "k", bytes(32), "v1", Policy())

    def handler(permit: Permit) -> Any:
        return "done"

    with Engine.connect("memory://") as engine:
        with pytest.raises(TypeError, match=r"must return a semel\.Answer.*not str"):
            engine.run(command, handler)
        with pytest.raises(OutcomeUnknownError):
            engine.run(command, lambda permit: Answer(200, (), b""))


def test_an_atomic_handler_that_returns_no_answer_releases_the_file(tmp_path: Any) -> None:
    command = Command(SCOPE, "k", bytes(32), "v1", Policy(effects="atomic"))

    async def nothing(permit: Permit) -> Any:
        permit.connection.execute("INSERT INTO notes VALUES ('x')")

    async def note(permit: Permit) -> Answer:
        permit.connection.execute("INSERT INTO notes VALUES ('y')")
        return Answer(201, (), b"noted")

    async def both() -> tuple[bool, int]:
        engine = AsyncEngine.connect(f"sqlite:///{tmp_path}/app.db?busy_seconds=1")
        await engine.migrate()

        async def table(permit: Permit) -> Answer:
            permit.connection.execute("CREATE TABLE notes (text TEXT)")
            return Answer(200, (), b"")

        await engine.run(Command(SCOPE, "table", bytes(32), "v1", Policy(effects="atomic")), table)
        with pytest.raises(TypeError, match="not NoneType"):
            await engine.run(command, nothing)
        result = await engine.run(command, note)

        async def count(permit: Permit) -> Answer:
            [found] = permit.connection.execute("SELECT count(*) FROM notes").fetchone()
            return Answer(200, (), str(found).encode())

        counted = await engine.run(Command(SCOPE, "count", bytes(32), "v1", Policy(effects="atomic")), count)
        await engine.close()
        return result.replayed, int(counted.answer.body)

    assert asyncio.run(both()) == (False, 1)


def test_an_unmigrated_store_names_the_whole_command(tmp_path: Any) -> None:
    engine = Engine.connect(f"sqlite:///{tmp_path}/app.db")
    with pytest.raises(ConfigurationError, match=rf"semel migrate --url sqlite:///{tmp_path}/app\.db"):
        engine.open()
    engine.close()


def test_an_impossible_session_is_refused_when_the_endpoint_is_declared(tmp_path: Path) -> None:
    on_sqlite = Semel(AsyncEngine.connect(f"sqlite:///{tmp_path}/semel.db"), caller=single_caller)
    on_postgres = Semel(AsyncEngine.connect("postgresql://127.0.0.1/nowhere"), caller=single_caller)

    async def with_async(session: AsyncSession = Semel.atomic_session) -> None: ...

    async def with_sync(session: Session = Semel.atomic_session) -> None: ...

    def in_a_thread(session: AsyncSession = Semel.atomic_session) -> None: ...

    with pytest.raises(ConfigurationError, match="declare effects='atomic'"):
        on_sqlite.command("external", effects="external")(with_sync)
    with pytest.raises(
        ConfigurationError, match=r"on SQLite .* annotate it session: Session, or use the application's own"
    ):
        on_sqlite.command("async", effects="atomic")(with_async)
    with pytest.raises(ConfigurationError, match=r"on PostgreSQL and MariaDB .* annotate it session: AsyncSession$"):
        on_postgres.command("sync", effects="atomic")(with_sync)
    with pytest.raises(ConfigurationError, match="write async def"):
        on_postgres.command("thread", effects="atomic")(in_a_thread)
