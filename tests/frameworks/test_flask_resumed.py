"""Resumable views of Flask: 202 and a link at once, and an end without the client, here or in another process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, abort, g, redirect, request

from semel import Engine, Policy
from semel.check.discovery import discover
from semel.http.wsgi.route import CaptureMiddleware
from semel.http.wsgi.threads import Accepted
from semel.integrations.flask import Semel
from semel.resuming.process import completing
from semel.resuming.request import NotReached
from semel.resuming.wsgi import completer_for

SHIP = Policy(steps=True, resumable=True, wait_seconds=0)
ASYNC = {"Prefer": "respond-async"}


class Shop:
    """A shop whose second step waits for ``gate``."""

    def __init__(self, folder: Path) -> None:
        url = f"sqlite:///{folder}/shop.db"
        self.engine = Engine.connect(url)
        self.engine.migrate()
        self.gate = threading.Event()
        self.effects: list[str] = []
        self.threads: list[str] = []
        self.logged: list[bytes] = []
        self.lets_in = True
        self.ends: Callable[[], Any] = lambda: ("shipped", 201)
        app = self.app = Flask("shop")
        semel = Semel(app, self.engine, caller=lambda: g.user)

        @app.before_request
        def authenticate() -> None:
            g.user = request.headers.get("X-User")
            if "semel.resumed" in request.environ:  # a completer runs it
                g.user = request.environ["semel.permit"].command.scope.caller
            if g.user is None or not self.lets_in:
                abort(401)

        @app.after_request
        def log(response: Any) -> Any:  # reads the body behind the view, as loggers do
            self.logged.append(request.get_data())
            return response

        @app.errorhandler(ValueError)
        def sorry(error: ValueError) -> Any:
            return redirect("/sorry")

        @app.post("/ship/<int:number>")
        @semel.command("ship", SHIP)
        def ship(number: int) -> Any:
            permit = semel.permit
            self.threads.append(threading.current_thread().name)
            what = f"{number} {request.get_json()['what']} for {g.user}"
            permit.step("charge", lambda: self.effects.append(f"charge {what}"))
            assert self.gate.wait(20)
            permit.step("ship", lambda: self.effects.append(f"ship {what}"), repeat=True)
            return self.ends()

    def ask(self, headers: Any = (), **more: Any) -> Any:
        given = {"X-User": "alice", "Idempotency-Key": "order-number-1", **dict(headers)}
        return self.app.test_client().post("/ship/7", json={"what": "parcel"}, headers=given, **more)

    def close_accepted(self) -> None:
        middleware = self.app.wsgi_app
        assert isinstance(middleware, CaptureMiddleware)
        middleware.close()

    def complete(self) -> int:
        """Do what `semel worker --complete` does."""

        async def story() -> int:
            async with completing(self.app, "shop:app") as found:
                return await found.completers[0].run_once()

        return asyncio.run(story())

    def status(self, path: str) -> Any:
        return self.app.test_client().get(path, headers={"X-User": "alice"}).get_json()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    with closing(made.engine):
        yield made
        made.gate.set()
        made.close_accepted()


DONE = ["charge 7 parcel for alice", "ship 7 parcel for alice"]


def test_the_client_gets_a_status_link_and_the_answer_later(shop: Shop) -> None:
    first = shop.ask(ASYNC)
    assert (first.status_code, first.headers["Preference-Applied"]) == (202, "respond-async")
    link = first.headers["Location"]
    assert shop.status(link)["running"] is True
    assert (shop.ask(ASYNC).status_code, shop.ask(ASYNC).headers["Location"]) == (202, link)
    assert shop.ask().status_code == 202  # it ends although the client is gone
    shop.gate.set()
    shop.close_accepted()
    for _ in range(2):
        ended = shop.ask(ASYNC)
        assert (ended.status_code, ended.data, ended.headers["Idempotency-Replayed"]) == (201, b"shipped", "true")
    assert shop.status(link)["state"] == "SUCCEEDED"
    assert (shop.effects, shop.threads) == (DONE, ["semel-accepted"])
    assert set(shop.logged) == {b"", b'{"what": "parcel"}'}  # of questions, and of each command, accepted or run


def test_without_the_preference_or_a_place_the_client_waits(shop: Shop) -> None:
    shop.gate.set()
    assert shop.ask().status_code == 201
    shop.app.wsgi_app._accepted = Accepted(at_once=0)  # type: ignore[attr-defined]
    again = shop.ask({**ASYNC, "Idempotency-Key": "order-number-2"})
    assert (again.status_code, "Preference-Applied" in again.headers) == (201, False)
    assert len(shop.effects) == 4


def test_a_request_refused_before_the_view_gets_no_202(shop: Shop) -> None:
    shop.lets_in = False
    assert shop.ask(ASYNC).status_code == 401
    shop.lets_in = True
    shop.gate.set()
    assert shop.ask({**ASYNC, "X-User": "bob"}).status_code == 202
    shop.close_accepted()
    assert shop.effects == ["charge 7 parcel for bob", "ship 7 parcel for bob"]


def test_a_second_run_that_reaches_no_view_has_done_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda what: told.append(str(what.exc_value)))
    asked: list[int] = []

    @shop.app.before_request
    def only_once() -> None:
        asked.append(1)
        if len(asked) == 2:
            abort(429)

    shop.gate.set()
    assert shop.ask(ASYNC).status_code == 202
    shop.close_accepted()
    assert ["before it reached its view" in each for each in told] == [True]
    assert shop.ask().status_code == 201  # proven that nothing had happened
    assert shop.effects == DONE


def _raise(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize("error", [ConnectionError("away"), ValueError("which an error handler makes a redirect of")])
def test_a_completer_continues_after_an_error_behind_the_202(shop: Shop, error: Exception) -> None:
    shop.gate.set()
    right, shop.ends = shop.ends, lambda: _raise(error)
    assert shop.ask(ASYNC).status_code == 202
    shop.close_accepted()
    assert shop.complete() == 0  # the view raises again; an error page is not a success
    shop.ends = right
    [completer] = [completer_for(shop.engine, shop.app, _routes(shop))]
    assert completer is not None
    assert asyncio.run(completer.run_once()) == 1
    got = shop.ask()
    assert (got.status_code, got.headers["Idempotency-Replayed"]) == (201, "true")
    assert [each for each in shop.effects if each.startswith("charge")] == DONE[:1]


def _routes(shop: Shop) -> list[Any]:
    [found] = [each for each in discover(shop.app).operations if each.name == "ship"]
    assert found.surface is not None
    return [found.surface.route(found.name, found.policy)]


def test_a_completer_without_access_reports_it_and_claims_nothing(shop: Shop) -> None:
    shop.gate.set()
    right, shop.ends = shop.ends, lambda: _raise(ConnectionError("away"))
    assert shop.ask(ASYNC).status_code == 202
    shop.close_accepted()
    shop.ends, shop.lets_in = right, False
    told: list[Any] = []

    async def story() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda loop, what: told.append(what["exception"]))
        [completer] = [completer_for(shop.engine, shop.app, _routes(shop))]
        assert completer is not None
        return await completer.run_once()

    assert asyncio.run(story()) == 0
    assert [type(each) for each in told] == [NotReached]
    assert "environ has 'semel.resumed'" in str(told[0])
    shop.lets_in = True
    assert shop.complete() == 1
    assert shop.ask().headers["Idempotency-Replayed"] == "true"


def test_a_long_answer_behind_the_202_is_read_to_its_end(shop: Shop) -> None:
    shop.gate.set()
    shop.ends = lambda: ((b"x" * 100_000 for _ in range(20)), 201)
    assert shop.ask(ASYNC).status_code == 202
    shop.close_accepted()
    got = shop.ask()
    assert (got.status_code, got.headers["Semel-Code"]) == (409, "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE")
    assert shop.effects == DONE
