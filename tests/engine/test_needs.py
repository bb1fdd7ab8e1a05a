"""Impossible pairs of an operation and a store are refused where they are declared or at start-up, on every surface."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from semel import Answer, AsyncEngine, Engine, Permit, Policy
from semel.cli.main import main
from semel.errors import ConfigurationError
from semel.functions import command as declared_command
from semel.http.asgi.middleware import SemelMiddleware as AsgiMiddleware
from semel.http.caller import single_caller
from semel.http.routing import Operation
from semel.http.wsgi.middleware import SemelMiddleware as WsgiMiddleware
from semel.integrations import fastapi, starlette
from semel.stores.urls import connect_backend
from tests.engine.shells import Mode, Shell, command
from tests.servers import redis
from tests.servers.running import Running, stop

Declares = Callable[[str, str], object]
NOWHERE = "redis://app:hunter2@127.0.0.1:7/0"  # nothing listens there: the refusal needs no server
ATOMIC = r"effects='atomic' needs a store in the same database .*Use sqlite:///, postgresql:// or mysql://"
FORGETS = r"'pay' is effects='external', and the store would lose .*Set appendonly yes.*persistence=none"


async def pay(request: Request) -> Response:
    raise AssertionError("the handler ran")


def never_runs(permit: Permit) -> Answer:
    raise AssertionError("the handler ran")


async def never(*_: Any) -> Any:
    raise AssertionError("the application ran")


def never_asked(*_: Any) -> list[bytes]:
    raise AssertionError("the application ran")


def by_asgi(url: str, effects: Any) -> object:
    return AsgiMiddleware(never, AsyncEngine.connect(url), caller=single_caller, operations=[operation(effects)])


def by_asgi_default(url: str, effects: Any) -> object:
    return AsgiMiddleware(never, AsyncEngine.connect(url), caller=single_caller, default=Policy.of(effects=effects))


def by_wsgi(url: str, effects: Any) -> object:
    return WsgiMiddleware(never_asked, Engine.connect(url), caller=single_caller, operations=[operation(effects)])


def by_starlette(url: str, effects: Any) -> object:
    return starlette.Semel(AsyncEngine.connect(url), caller=single_caller).command("pay", effects=effects)(pay)


def by_fastapi(url: str, effects: Any) -> object:
    return fastapi.Semel(AsyncEngine.connect(url), caller=single_caller).command("pay", effects=effects)(pay)


def by_function(url: str, effects: Any) -> object:
    @declared_command(Engine.connect(url), "pay", key="order", caller=single_caller, effects=effects)
    def charge(order: str) -> str:
        raise AssertionError("the function ran")

    return charge


def operation(effects: Any) -> Operation:
    return Operation("/pay", Policy.of(effects=effects), name="pay")


SURFACES = (by_asgi, by_asgi_default, by_wsgi, by_starlette, by_fastapi, by_function)


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server as it comes: no append-only file."""
    server = redis.start(tmp_path_factory.mktemp("forgetful") / "own")
    yield server
    stop(server)


@pytest.fixture
def url(forgetful: Running) -> str:
    """A store on it, migrated."""
    made = f"redis://127.0.0.1:{forgetful.port}/0?prefix={redis.prefix()}"
    with closing(Engine.connect(made)) as engine:
        engine.migrate()
    return made


# --- ATOMIC, where there is no transaction: where it is declared, before anything is opened ----------


@pytest.mark.parametrize("declares", SURFACES)
@pytest.mark.parametrize("store", ["memory://", NOWHERE, "redis+cluster://h:7"])
def test_atomic_is_refused_where_it_is_declared(declares: Declares, store: str) -> None:
    with pytest.raises(ConfigurationError, match=ATOMIC) as told:
        declares(store, "atomic")
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_undeclared_atomic_command_is_refused_before_its_handler(in_memory: bool, mode: Mode, url: str) -> None:
    with closing(Shell(mode, connect_backend("memory://" if in_memory else url))) as shell:
        shell.open()
        with pytest.raises(ConfigurationError, match=ATOMIC):
            shell.run(command(policy=Policy(effects="atomic")), never_runs)
        assert shell.row(command(policy=Policy(effects="atomic"))) is None


# --- EXTERNAL, where the server forgets: when the engine is opened -----------------------------------


def asgi_app(url: str) -> Any:
    app = Starlette(routes=[Route("/pay", pay, methods=["POST"])])
    engine = AsyncEngine.connect(url)
    return AsgiMiddleware(app, engine, caller=single_caller, operations=[operation("external")], manage_engine=True)


def starlette_app(url: str) -> Any:
    semel = starlette.Semel(AsyncEngine.connect(url), caller=single_caller)

    @semel.command("pay", effects="external")
    async def endpoint(request: Request, permit: Permit = starlette.Semel.permit) -> Response:
        raise AssertionError("the handler ran")

    app = Starlette(routes=[Route("/pay", endpoint, methods=["POST"])])
    semel.install(app)
    return app


def fastapi_app(url: str) -> Any:
    semel = fastapi.Semel(AsyncEngine.connect(url), caller=single_caller)
    app = FastAPI()

    @app.post("/pay")
    @semel.command("pay", effects="external")
    async def endpoint(permit: Permit = semel.permit) -> None:
        raise AssertionError("the handler ran")

    semel.install(app)
    return app


@pytest.mark.parametrize("make", [asgi_app, starlette_app, fastapi_app])
def test_an_asgi_application_does_not_start_on_a_server_that_forgets(make: Callable[[str], Any], url: str) -> None:
    with pytest.raises(ConfigurationError, match=FORGETS), TestClient(make(url)):
        raise AssertionError("it started")


@pytest.mark.parametrize("make", [asgi_app, starlette_app, fastapi_app])
def test_an_application_starts_if_the_url_accepts_the_loss(make: Callable[[str], Any], url: str) -> None:
    with TestClient(make(f"{url}&persistence=none")) as client:
        assert client.get("/nothing").status_code == 404


def test_a_wsgi_application_does_not_start_on_a_server_that_forgets(url: str) -> None:
    """In both orders of the declaration and the opening of the engine."""
    with closing(Engine.connect(url)) as engine:
        WsgiMiddleware(never_asked, engine, caller=single_caller, operations=[operation("external")])
        with pytest.raises(ConfigurationError, match=FORGETS):
            engine.open()
    with Engine.connect(url) as engine, pytest.raises(ConfigurationError, match=FORGETS):
        WsgiMiddleware(never_asked, engine, caller=single_caller, operations=[operation("external")])


def test_a_function_does_not_start_on_a_server_that_forgets(url: str) -> None:
    """Nor one whose engine is only known when it is called."""
    with closing(Engine.connect(url)) as engine:

        @declared_command(engine, "pay", key="order", caller=single_caller, effects="external")
        def charge(order: str) -> str:
            raise AssertionError("the function ran")

        with pytest.raises(ConfigurationError, match=FORGETS):
            engine.open()
    with Engine.connect(url) as engine:

        @declared_command(lambda: engine, "pay", key="order", caller=single_caller, effects="external")
        def charge_late(order: str) -> str:
            raise AssertionError("the function ran")

        with pytest.raises(ConfigurationError, match=FORGETS):
            charge_late("1")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_undeclared_command_is_refused_before_its_handler(url: str, mode: Mode) -> None:
    with closing(Shell(mode, connect_backend(url))) as shell:
        shell.open()
        with pytest.raises(ConfigurationError, match=FORGETS):
            shell.run(command(), never_runs)


def test_the_reference_service_does_not_start(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0", "--url", url]) == 2
    assert "the reference service runs on sqlite:///" in capsys.readouterr().err


# --- semel check -------------------------------------------------------------------------------------

APPLICATION = """
from semel import Engine
from semel.functions import command
from semel.http.caller import single_caller

@command(Engine.connect({url!r}), "pay", key="order", caller=single_caller, effects={effects!r})
def pay(order: str) -> str:
    raise AssertionError("the function ran")
"""


@pytest.fixture
def check_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str, str], tuple[int, Any]]:
    """Check a module with one function."""

    def check(url: str, effects: Any) -> tuple[int, Any]:
        (tmp_path / "needing.py").write_text(APPLICATION.format(url=url, effects=effects))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "needing", raising=False)
        capsys.readouterr()
        code = main(["check", "needing", "--json"])
        return code, json.loads(capsys.readouterr().out)

    return check


def test_check_refuses_what_would_not_start(check_module: Callable[[str, str], tuple[int, Any]], url: str) -> None:
    code, said = check_module("memory://", "atomic")
    assert (code, "effects='atomic' needs a store" in said["error"]) == (2, True)
    code, said = check_module(url, "external")
    assert (code, said["servers"][0]["level"]) == (1, "unsafe")
    assert "'pay' is effects='external', and the store would lose" in said["servers"][0]["answer"]


@pytest.mark.parametrize(
    ("options", "effects", "level", "part"),
    [
        ("", "idempotent", "ok", "matches the declaration"),
        ("&persistence=none", "external", "open", "its URL accepts that"),
    ],
)
def test_check_reports_what_its_servers_keep(
    check_module: Callable[[str, str], tuple[int, Any]],
    url: str,
    options: str,
    effects: Any,
    level: str,
    part: str,
) -> None:
    _, said = check_module(url + options, effects)
    assert (said["servers"][0]["level"], part in said["servers"][0]["answer"]) == (level, True)


def test_check_reports_an_unreachable_server(check_module: Callable[[str, str], tuple[int, Any]]) -> None:
    _, said = check_module(NOWHERE, "external")
    assert said["servers"][0]["level"] == "open"
    assert "cannot be asked" in said["servers"][0]["answer"]
    assert "hunter2" not in json.dumps(said)
