"""Resumable operations over WSGI: 202 and a link at once, a status to ask for, and an end without the client."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, request

from semel import Engine, Policy
from semel.core.model import Find, State
from semel.errors import ConfigurationError
from semel.http.caller import from_environ, single_caller
from semel.http.exchange import IncompleteAnswer
from semel.http.problems import Problems
from semel.http.routing import Operation
from semel.http.wsgi.middleware import SemelMiddleware
from semel.http.wsgi.threads import Accepted
from semel.resuming.wsgi import completer_of
from tests.web.driving import Response, wsgi_call, wsgi_environ

SHIP = Policy(steps=True, resumable=True, wait_seconds=0)
OPERATIONS = [Operation("/ship", SHIP, name="ship")]
ASYNC = [("Idempotency-Key", "order-number-1"), ("Prefer", "respond-async"), ("Content-Type", "text/plain")]
PLAIN = [ASYNC[0], ASYNC[2]]
App = Callable[..., Iterable[bytes]]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with closing(Engine.connect(f"sqlite:///{tmp_path}/shop.db")) as made:
        made.migrate()
        yield made


class Shop:
    """An application whose second step begins on a signal."""

    def __init__(self) -> None:
        self.opens = threading.Event()
        self.effects: list[str] = []
        self.seen: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.body: Iterable[bytes] = (b"ship", b"ped")
        self.headers = [("Content-Type", "text/plain")]

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        self.seen.append(environ)
        permit = environ["semel.permit"]
        parcel = environ["wsgi.input"].read().decode()
        permit.step("charge", lambda: self.effects.append("charge"))
        assert self.opens.wait(20)
        if self.error is not None:
            raise self.error
        permit.step("ship", lambda: self.effects.append(f"ship {parcel}"), repeat=True)
        start_response("201 Shipped", self.headers)
        return self.body


def protect(app: App, engine: Engine, **settings: Any) -> SemelMiddleware:
    return SemelMiddleware(app, engine, **{"caller": single_caller, "operations": OPERATIONS, **settings})


def ask(app: App, headers: list[tuple[str, str]] = ASYNC, body: bytes = b"parcel") -> Response:
    sized = [*headers, ("Content-Length", str(len(body)))]
    return wsgi_call(app, wsgi_environ("POST", "/ship", "", sized, body, None))


def look(app: App, path: str, query: str = "", method: str = "GET", user: str | None = None) -> Response:
    environ = wsgi_environ(method, path, query, [], b"", None)
    return wsgi_call(app, environ if user is None else {**environ, "REMOTE_USER": user})


def complete(app: SemelMiddleware, engine: Engine) -> int:
    completer = completer_of(app.surface, engine, app.app)
    assert completer is not None
    return asyncio.run(completer.run_once())


def test_the_client_gets_a_status_link_and_the_answer_later(engine: Engine) -> None:
    shop = Shop()
    app = protect(shop, engine, serve_operations=True)
    first = ask(app)
    assert first.status == 202
    assert first.header("preference-applied") == "respond-async"
    assert first.header("retry-after") == "1"
    link = first.header("location")
    assert link is not None
    assert json.loads(first.body)["operation"] == link
    running = look(app, link)
    assert (running.status, json.loads(running.body)["running"]) == (200, True)
    assert running.header("retry-after") is not None
    again = ask(app)
    assert (again.status, again.header("location")) == (202, link)
    shop.opens.set()
    app.close()
    ended = ask(app)
    assert (ended.status, ended.body, ended.replayed) == (201, b"shipped", True)
    assert json.loads(look(app, link).body)["state"] == "SUCCEEDED"
    assert shop.effects == ["charge", "ship parcel"]


def test_without_a_free_thread_the_client_waits(engine: Engine) -> None:
    shop = Shop()
    shop.opens.set()
    app = protect(shop, engine)
    app._accepted = Accepted(at_once=0)
    got = ask(app)
    assert (got.status, got.body, got.header("preference-applied")) == (201, b"shipped", None)


def test_at_the_end_of_the_interpreter_the_client_waits(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop()
    shop.opens.set()
    app = protect(shop, engine)

    def refuse_to_start(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse_to_start)
        assert not app._accepted.begin(lambda: None)
    assert ask(app).status == 202  # the place was given back
    app.close()


def test_an_error_behind_the_202_is_reported_and_a_completer_continues(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda what: told.append(what.exc_value))
    shop = Shop()
    app = protect(shop, engine)
    shop.error = ConnectionError("away")
    shop.opens.set()
    assert ask(app).status == 202
    app.close()
    assert told == [shop.error]
    shop.error = None
    assert complete(app, engine) == 1
    assert ask(app, PLAIN).replayed
    assert shop.effects == ["charge", "ship parcel"]


def test_a_long_answer_behind_the_202_is_read_to_its_end_and_not_stored(engine: Engine) -> None:
    shop = Shop()
    shop.opens.set()
    shop.body = (b"x" * 1000 for _ in range(5))
    app = protect(shop, engine, operations=[Operation("/ship", replace(SHIP, answer_bytes_max=1500), name="ship")])
    assert ask(app).status == 202
    app.close()
    assert ask(app).code == "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE"
    assert next(shop.body, None) is None


def test_the_preference_is_ignored_without_a_completer(engine: Engine) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("201 Made", [])
        return [b"done"]

    got = ask(protect(app, engine, operations=[Operation("/ship", Policy(), name="ship")]))
    assert (got.status, got.body) == (201, b"done")


def test_flask_completes_a_stored_request_without_credentials(engine: Engine) -> None:
    seen: list[tuple[bytes, str | None, str, str, str]] = []
    resumed: list[bool] = []
    flask = Flask("shop")

    @flask.post("/ship/<number>")
    def ship(number: str) -> tuple[str, int]:
        resumed.append("semel.resumed" in request.environ)  # a login inside of the middleware lets only these pass
        permit = request.environ["semel.permit"]
        authorization, speed = request.headers.get("Authorization"), request.args["speed"]
        seen.append((request.get_data(), authorization, number, speed, request.mimetype))
        permit.step("ship", lambda: None, repeat=True)
        if permit.attempt == 1:
            raise ConnectionError("away")
        return f"shipped {number}", 201

    declared = [Operation("/ship/{number}", SHIP)]
    wsgi = flask.wsgi_app
    flask.wsgi_app = app = protect(wsgi, engine, operations=declared)  # type: ignore[method-assign]
    headers = {"Idempotency-Key": "order-number-1", "Authorization": "Bearer secret", "Content-Type": "text/plain"}
    client = flask.test_client()
    assert client.post("/ship/ä7?speed=high", headers=headers, data=b"parcel").status_code == 500
    assert complete(app, engine) == 1
    ended = client.post("/ship/ä7?speed=high", headers=headers, data=b"parcel")
    assert (ended.status_code, ended.data) == (201, "shipped ä7".encode())
    rest = ("ä7", "high", "text/plain")
    assert seen == [(b"parcel", "Bearer secret", *rest), (b"parcel", None, *rest)]
    assert resumed == [False, True]


def test_django_completes_a_stored_request(engine: Engine) -> None:
    """In a process of its own: Django is configured once for each process."""
    told = [sys.executable, "-m", "tests.steps.django_shop", engine.backend.url]
    done = subprocess.run(told, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [202, 1, 201, "shipped 7: parcel", True]


@pytest.mark.parametrize("how", ["write", "again", "nothing", "early"])
def test_a_stored_request_may_contain_anything_that_wsgi_allows(how: str, engine: Engine) -> None:
    closed: list[str] = []

    class Pieces(list[bytes]):
        def close(self) -> None:
            closed.append("closed")

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["semel.permit"].step("note", lambda: None, repeat=True)
        if environ["semel.permit"].attempt == 1:
            raise ConnectionError("away")
        if how == "early":
            return Pieces([b"too early"])
        if how == "nothing":
            return Pieces()
        write = start_response("500 No", [])
        if how == "write":
            write(b"ship")
        start_response("201 Made", [("Content-Type", "text/plain")], (ValueError, ValueError(), None))
        return Pieces([b"shipped"])

    shop = protect(app, engine)
    with pytest.raises(ConnectionError):
        ask(shop, PLAIN)
    told: list[BaseException] = []

    async def once() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what["exception"]))
        completer = completer_of(shop.surface, engine, shop.app)
        assert completer is not None
        return await completer.run_once()

    good = how in ("write", "again")
    assert asyncio.run(once()) == good
    assert closed == ["closed"]
    if good:
        assert ask(shop, PLAIN).body == b"shipped"
    else:
        assert [type(each) for each in told] == [IncompleteAnswer if how == "nothing" else RuntimeError]


def test_a_long_answer_without_a_client_is_not_stored(engine: Engine) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["semel.permit"].step("note", lambda: None, repeat=True)
        if environ["semel.permit"].attempt == 1:
            raise ConnectionError("away")
        start_response("201 Made", [])
        return [b"x" * 1000, b"x" * 1000]

    declared = [Operation("/ship", replace(SHIP, answer_bytes_max=1500), name="ship")]
    shop = protect(app, engine, operations=declared)
    with pytest.raises(ConnectionError):
        ask(shop, PLAIN)
    assert complete(shop, engine) == 1
    assert ask(shop, PLAIN).code == "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE"


# --- the status resource --------------------------------------------------------------------------


def test_the_status_is_only_for_the_caller(engine: Engine) -> None:
    shop = Shop()
    shop.opens.set()
    app = protect(shop, engine, caller=from_environ("REMOTE_USER"), serve_operations=True)
    environ = wsgi_environ("POST", "/ship", "", [*PLAIN, ("Content-Length", "6")], b"parcel", None)
    assert wsgi_call(app, {**environ, "REMOTE_USER": "alice"}).status == 201
    [row] = engine.perform("find", lambda: engine.store.find(Find())).records
    assert row.state == State.SUCCEEDED
    by_key = look(app, "/operations", "key=order-number-1", user="alice")
    document = json.loads(by_key.body)
    assert (by_key.status, document["operation"]) == (200, "ship")
    path = f"/operations/{document['operationId']}"
    assert look(app, path, user="alice").body == by_key.body
    assert (look(app, path, user="alice", method="HEAD").status, look(app, path, method="HEAD").status) == (200, 401)
    assert look(app, path, user="alice", method="HEAD").body == b""
    assert look(app, path, user="bob").code == "OPERATION_NOT_FOUND"
    assert look(app, path).code == "IDEMPOTENCY_CALLER_UNKNOWN"
    assert look(app, "/operations/7", user="alice").code == "OPERATION_QUERY_INVALID"
    refused = look(app, path, user="alice", method="DELETE")
    assert (refused.status, refused.header("allow")) == (405, "GET, HEAD")


def test_several_operations_are_read_by_one_query(engine: Engine) -> None:
    shop = Shop()
    shop.opens.set()
    declared = [*OPERATIONS, Operation("/return", methods=("POST", "PUT"))]
    app = protect(shop, engine, operations=declared, default=Policy(), serve_operations=True)
    assert ask(app, PLAIN).status == 201
    reads: list[int] = []
    read = engine.store.read

    def count_and_read(ids: Any) -> Any:
        reads.append(len(ids))
        return read(ids)

    engine.store.read = count_and_read  # type: ignore[method-assign]
    assert look(app, "/operations", "key=order-number-1").status == 200
    assert look(app, "/operations", "key=order-number-1&operation=ship&operation=none&operation=ship").status == 200
    assert look(app, "/operations", "key=order-number-1&operation=none").code == "OPERATION_NOT_FOUND"
    assert reads == [5, 2, 1]


def test_a_status_resource_requires_a_path(engine: Engine) -> None:
    for path in (None, "/operations?id={id}"):
        with pytest.raises(ConfigurationError, match="operations_path"):
            protect(Shop(), engine, serve_operations=True, problems=Problems(operations_path=path))
