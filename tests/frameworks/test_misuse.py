"""Each adapter, misused: the error when the application is built or started, or else at its first request."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import grpc
import pytest
import strawberry
from fastapi import FastAPI
from flask import Flask
from google.rpc.error_details_pb2 import RequestInfo
from litestar import Litestar, post
from litestar.testing import TestClient as LitestarClient
from quart import Quart
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient
from strawberry.extensions import FieldExtension

from semel import AsyncEngine, Engine, Policy
from semel.errors import ConfigurationError
from semel.http import refused
from semel.http.caller import single_caller
from semel.http.outage import Outage
from semel.integrations.fastapi import Semel as FastApiSemel
from semel.integrations.flask import Semel as FlaskSemel
from semel.integrations.grpc import AsyncSemelInterceptor, Caller, SemelInterceptor
from semel.integrations.litestar import Semel as LitestarSemel
from semel.integrations.quart import Semel as QuartSemel
from semel.integrations.starlette import Semel as StarletteSemel
from semel.integrations.strawberry import Idempotent
from semel.stores.sql import django as databases

KEY: Final = {"Idempotency-Key": "key-1"}
MEMORY: Final = "memory://?persistence=none"
METHOD: Final = "/shop.Pay/Create"
# How an application is made: on a store, with these effects, with its capture, started as a server starts it.
Make = Callable[..., str]


def starlette(url: str = MEMORY, effects: Any = "external", *, installs: bool = True, starts: bool = False) -> str:
    semel = StarletteSemel(AsyncEngine.connect(url), caller=single_caller)

    @semel.command("pay", effects=effects)
    async def pay(request: Request) -> Response:
        return PlainTextResponse("ok")

    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    if installs:
        semel.install(app)
    return ask_status(TestClient(app), starts=starts)


def fastapi(url: str = MEMORY, effects: Any = "external", *, installs: bool = True, starts: bool = False) -> str:
    app, semel = FastAPI(), FastApiSemel(AsyncEngine.connect(url), caller=single_caller)

    @app.post("/pay")
    @semel.command("pay", effects=effects)
    async def pay() -> str:
        return "ok"

    if installs:
        semel.install(app)
    return ask_status(TestClient(app), starts=starts)


def litestar(url: str = MEMORY, effects: Any = "external", *, installs: bool = True, starts: bool = False) -> str:
    semel = LitestarSemel(AsyncEngine.connect(url), caller=single_caller, reap=False)

    @post("/pay")
    @semel.command("pay", effects=effects)
    async def pay() -> str:
        return "ok"

    return ask_status(LitestarClient(Litestar([pay], plugins=[semel] if installs else [], debug=True)), starts=starts)


def ask_status(client: Any, *, starts: bool) -> str:
    if starts:
        with client:
            return ask_payment(client)
    return ask_payment(client)


def ask_payment(client: Any) -> str:
    answer = client.post("/pay", headers=KEY)
    return f"{answer.status_code} {answer.text}"


def flask(url: str = MEMORY, effects: Any = "external", *, installs: bool = True) -> str:
    app, semel = Flask("shop"), FlaskSemel(caller=lambda: "alice")
    app.testing = True
    if installs:
        semel.init_app(app, Engine.connect(url))

    @app.post("/pay")
    @semel.command("pay", effects=effects)
    def pay() -> str:
        return "ok"

    return ask_payment(app.test_client())


def quart(url: str = MEMORY, effects: Any = "external", *, installs: bool = True, starts: bool = False) -> str:
    app = Quart("shop")
    app.testing = True
    semel = QuartSemel(app if installs else None, AsyncEngine.connect(url), caller=lambda: "alice", reap=False)

    @app.post("/pay")
    @semel.command("pay", effects=effects)
    async def pay() -> str:
        return "ok"

    async def story() -> str:
        if not starts:
            answer = await app.test_client().post("/pay", headers=KEY)
            return f"{answer.status_code} {await answer.get_data(as_text=True)}"
        async with app.test_app():
            return "started"

    return asyncio.run(story())


def graphql(url: str = MEMORY, effects: Any = "external", *before: FieldExtension) -> str:
    @strawberry.type
    class Query:
        version: int = 1

    once = Idempotent(Engine.connect(url), "pay", caller=single_caller, key="key", effects=effects)

    @strawberry.type
    class Mutation:
        @strawberry.mutation(extensions=[*before, once])  # type: ignore[untyped-decorator]
        def pay(self, key: str) -> str:
            return "ok"

    answer = strawberry.Schema(Query, Mutation).execute_sync('mutation { pay(key: "key-1") }')
    return f"{answer.data} {[(str(each), each.extensions) for each in answer.errors or ()]}"


class Log(FieldExtension):
    def resolve(self, next_: Any, source: Any, info: Any, **kwargs: Any) -> Any:
        return next_(source, info, **kwargs)


def rpc(url: str = MEMORY, effects: Any = "external") -> str:
    once = SemelInterceptor(
        Engine.connect(url),
        caller=lambda call: Caller("shop", "alice"),
        operations={METHOD: Policy(effects=effects)},
    )
    handler = grpc.unary_unary_rpc_method_handler(
        lambda request, context: request, RequestInfo.FromString, RequestInfo.SerializeToString
    )
    server = grpc.server(ThreadPoolExecutor(1), interceptors=[once])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("shop.Pay", {"Create": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(METHOD, RequestInfo.SerializeToString, RequestInfo.FromString)
            return f"ok {call(RequestInfo(request_id='x'), metadata=[('idempotency-key', 'key-1')], timeout=20)}"
    except grpc.RpcError as error:
        return f"{error.code()} {error.details()}"
    finally:
        server.stop(0).wait(20)


# --- decorators in the other order ---


def starlette_above(*, late: bool) -> str:
    semel = StarletteSemel(AsyncEngine.connect(MEMORY), caller=single_caller)

    async def pay(request: Request) -> Response:
        return PlainTextResponse("ok")

    app = Starlette()
    if late:
        semel.install(app)
    app.router.routes.append(Route("/pay", pay, methods=["POST"]))
    semel.command("pay")(pay)
    if not late:
        semel.install(app)
    return ask_payment(TestClient(app))


def fastapi_above() -> str:
    app, semel = FastAPI(), FastApiSemel(AsyncEngine.connect(MEMORY), caller=single_caller)
    semel.install(app)

    @semel.command("pay")
    @app.post("/pay")
    async def pay() -> str:
        return "ok"

    return ask_payment(TestClient(app))


def flask_above() -> None:
    app = Flask("shop")
    semel = FlaskSemel(app, Engine.connect(MEMORY), caller=lambda: "alice")

    @semel.command("pay")
    @app.post("/pay")
    def pay() -> str:
        return "ok"


def quart_above() -> None:
    app = Quart("shop")
    semel = QuartSemel(app, AsyncEngine.connect(MEMORY), caller=lambda: "alice")

    @semel.command("pay")
    @app.post("/pay")
    async def pay() -> str:
        return "ok"


def litestar_above() -> None:
    semel = LitestarSemel(AsyncEngine.connect(MEMORY), caller=single_caller)

    @semel.command("pay")
    @post("/pay")
    async def pay() -> str:
        return "ok"


def strawberry_above() -> None:
    once = Idempotent(Engine.connect(MEMORY), "pay", caller=single_caller, key="key")

    @once
    @strawberry.mutation
    def pay(key: str) -> str:
        return "ok"


def installed_twice() -> None:
    semel, app = StarletteSemel(AsyncEngine.connect(MEMORY), caller=single_caller), Starlette()
    semel.install(app)
    semel.install(app)


def at_once(engine: Callable[[], Any]) -> Callable[[], object]:
    return lambda: SemelInterceptor(engine(), operations={METHOD: Policy()})


def nothing() -> Any:
    return Engine.connect(MEMORY)


def later() -> Any:
    return AsyncEngine.connect(MEMORY)


ABOVE: Final = r"the operation 'pay' is not protected: write @semel\.command below"
WHO: Final = r"^who is calling\? A key means something only for its caller\. (Paste|Give)"
WHO_CALLS: Final = r"caller= is missing: a key means something only for its caller; give a function of the (Info|Call)"
BARE: Final = r"does not exist; run: semel migrate --url sqlite:"
AWAY: Final = r"503 .*STORE_UNAVAILABLE.* log: .*run: semel migrate --url sqlite:"
WORKS: Final = r"^(200|201|ok) "

# What each adapter says to each mistake. A lambda's ``url`` is of a database without tables.
TABLE: Final[dict[str, dict[str, tuple[Callable[[str], object], str]]]] = {
    "the decorator above the route": {
        "FastAPI": (lambda url: fastapi_above(), ABOVE),
        "Starlette": (lambda url: starlette_above(late=False), ABOVE),
        "Starlette, routed to later": (lambda url: starlette_above(late=True), ABOVE),
        "Flask": (lambda url: flask_above(), ABOVE),
        "Quart": (lambda url: quart_above(), ABOVE),
        "Litestar": (lambda url: litestar_above(), ABOVE),
        "Strawberry": (
            lambda url: strawberry_above(),
            r"pay: Idempotent\(\.\.\.\) is not a decorator; write @strawberry",
        ),
        "gRPC": (
            lambda url: SemelInterceptor(nothing(), caller=single_caller, operations={}),
            r"operations= names no method, so no call would be protected",
        ),
    },
    "no caller": {
        "FastAPI": (lambda url: FastApiSemel(later()), WHO),
        "Starlette": (lambda url: StarletteSemel(later()), WHO),
        "Flask": (lambda url: FlaskSemel(Flask("shop"), nothing()), WHO),
        "Quart": (lambda url: QuartSemel(Quart("shop"), later()), WHO),
        "Litestar": (lambda url: LitestarSemel(later()), WHO),
        "Strawberry": (lambda url: Idempotent(nothing(), "pay"), WHO_CALLS),
        "gRPC": (lambda url: SemelInterceptor(nothing(), operations={METHOD: Policy()}), WHO_CALLS),
        "gRPC, async": (lambda url: AsyncSemelInterceptor(later(), operations={METHOD: Policy()}), WHO_CALLS),
    },
    # Its first command opens it.
    "an engine that was never opened": {
        "FastAPI": (lambda url: fastapi(), WORKS),
        "Starlette": (lambda url: starlette(), WORKS),
        "Flask": (lambda url: flask(), WORKS),
        "Quart": (lambda url: quart(), WORKS),
        "Litestar": (lambda url: litestar(), WORKS),
        "Strawberry": (lambda url: graphql(), r"^\{'pay': 'ok'\} \[\]"),
        "gRPC": (lambda url: rpc(), WORKS),
    },
    "an engine of the other colour": {
        "FastAPI": (lambda url: FastApiSemel(nothing(), caller=single_caller), "needs an AsyncEngine, not Engine"),
        "Starlette": (lambda url: StarletteSemel(nothing(), caller=single_caller), "needs an AsyncEngine, not Engine"),
        "Flask": (lambda url: FlaskSemel(Flask("x"), later(), caller=str), r"needs a semel\.Engine, not AsyncEngine"),
        "Quart": (lambda url: QuartSemel(Quart("x"), nothing(), caller=str), "needs an AsyncEngine, not Engine"),
        "Litestar": (lambda url: LitestarSemel(nothing(), caller=single_caller), "needs an AsyncEngine, not Engine"),
        "gRPC": (lambda url: SemelInterceptor(later(), operations={}), "needs an Engine; it was given AsyncEngine"),
    },
    "ATOMIC without Semel's tables": {
        "FastAPI": (lambda url: fastapi(url, "atomic", starts=True), BARE),
        "FastAPI, not started": (lambda url: fastapi(url, "atomic"), AWAY),
        "Starlette": (lambda url: starlette(url, "atomic", starts=True), BARE),
        "Flask": (lambda url: flask(url, "atomic"), AWAY),
        "Quart": (lambda url: quart(url, "atomic", starts=True), BARE),
        "Litestar": (lambda url: litestar(url, "atomic", starts=True), BARE),
        "Strawberry": (
            lambda url: graphql(url, "atomic"),
            r"Nothing was done\..*IDEMPOTENCY_STORE_UNAVAILABLE.* log: .*run: semel migrate --url sqlite:",
        ),
        "gRPC": (
            lambda url: rpc(url, "atomic"),
            r"UNAVAILABLE Nothing was done\. Retry with the same key\. log: .*run: semel migrate --url sqlite:",
        ),
    },
    "without its capture, or in the wrong order": {
        "FastAPI": (lambda url: fastapi(installs=False), r"'pay' is called without its capture; call semel\.install"),
        "Starlette": (lambda url: starlette(installs=False), r"'pay' is called without its capture; call semel\.inst"),
        "Starlette, twice": (lambda url: installed_twice(), r"was called for this application already; call it once"),
        "Flask": (lambda url: flask(installs=False), r"'pay' is called in the application 'shop', which its Semel doe"),
        "Quart": (lambda url: quart(installs=False), r"is called without its capture; give the application to"),
        "Litestar": (lambda url: litestar(installs=False), r"without its capture; give the Semel object to the app"),
        "Strawberry": (lambda url: graphql(MEMORY, "external", Log()), r"Log comes before Idempotent\(\.\.\.\)"),
    },
}
CELLS: Final = [(mistake, adapter) for mistake, row in TABLE.items() for adapter in row]


class Lines(logging.Handler):
    """The lines of Semel's log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    monkeypatch.setattr(refused, "_OUTAGE", Outage())  # it speaks once in ten seconds
    lines = Lines()
    logging.getLogger("semel").addHandler(lines)
    yield lines
    logging.getLogger("semel").removeHandler(lines)


@pytest.mark.parametrize(("mistake", "adapter"), CELLS)
def test_a_mistake_is_answered_with_its_remedy(mistake: str, adapter: str, tmp_path: Path, log: Lines) -> None:
    act, expected = TABLE[mistake][adapter]
    try:
        said = str(act(f"sqlite:///{tmp_path}/bare.db"))
    except Exception as error:  # noqa: BLE001 - frameworks raise different exceptions
        said = innermost(error)
    else:
        assert str(tmp_path) not in said, "a client must not learn where the store is"
        said = f"{said} log: {' '.join(log.lines)}"
    assert re.search(expected, said, re.DOTALL), said


def innermost(error: BaseException) -> str:
    """Return the error that the developer reads at the end of a traceback, inside a framework's own exceptions."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return str(error)


WITHOUT_THE_APP: Final = """
import django
from django.conf import settings
settings.configure(
    ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], MIDDLEWARE=["semel.integrations.django.middleware.SemelMiddleware"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.sqlite3"}},
    SEMEL={"CALLER": "semel.http.single_caller"},
)
django.setup()
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from semel.integrations import django as semel
view = semel.command("pay", effects="atomic")(lambda request: HttpResponse("ok"))
urlpatterns = [path("pay", view)]
for use in (semel.engine, lambda: Client().post("/pay", headers={"Idempotency-Key": "key-1"})):
    try:
        print("no error:", use())
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
from semel.integrations.django.checks import project_mistakes  # which semel check prints
[(_, remedy)] = project_mistakes()
print(remedy)
"""


def test_djangos_app_that_is_not_installed_is_named(tmp_path: Path) -> None:
    """It makes the tables and checks the settings, and without it nothing refuses ORM writes beside the record."""
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_APP], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    first, second, remedy = run.stdout.splitlines()
    assert first == second
    assert first.startswith("ConfigurationError: INSTALLED_APPS lacks 'semel.integrations.django'")
    assert remedy == "Correct the project's settings; until then every declared view answers 500."


@pytest.fixture(scope="module")
def django(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a project of Django's says, which is configured once in a process."""
    folder = tmp_path_factory.mktemp("misused")
    run = subprocess.run(
        [sys.executable, "-m", "tests.frameworks.misused_django", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, str] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        ("above", r"semel\.E006 the operation 'hidden' is not protected: 'plain' leads to the undecorated view"),
        ("above drf", r"below @api_view"),
        ("caller", r"semel\.E005 who is calling\?"),
        ("no tables", r"^503 .*run: semel migrate --url sqlite:"),
        ("no capture", r"semel\.E002 .*Semel's middleware is missing"),
        ("order", r"semel\.E004 GZipMiddleware is below Semel's middleware"),
    ],
)
def test_a_mistake_in_a_project_of_djangos_is_answered_with_its_remedy(
    mistake: str, expected: str, django: dict[str, str]
) -> None:
    assert re.search(expected, django[mistake], re.DOTALL), django[mistake]


@pytest.mark.parametrize("vendor", ["mysql", "oracle"])
def test_an_atomic_django_view_is_refused_where_its_transaction_cannot_be_joined(
    vendor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = SimpleNamespace(vendor=vendor, settings_dict={"NAME": "shop"})
    monkeypatch.setattr(databases, "connection_of", lambda alias: connection)
    with pytest.raises(ConfigurationError, match=f"is {vendor}, whose transaction Semel cannot join in Django"):
        databases.store_url_of("default")
