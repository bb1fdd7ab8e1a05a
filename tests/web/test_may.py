"""Nothing that is stored reaches a caller whose rights were revoked: `may=` is asked before the store."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from semel.core.identity import uuid_text
from semel.engine.async_engine import AsyncEngine
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError
from semel.http.asgi.middleware import SemelMiddleware as AsgiMiddleware
from semel.http.caller import single_caller
from semel.http.routing import Operation
from semel.http.settings import Wanted
from semel.http.wsgi.middleware import SemelMiddleware as WsgiMiddleware
from semel.integrations.starlette import Semel
from semel.policy import Policy
from tests.web.conftest import MakeWeb
from tests.web.driving import ALICE, KEY, Reply, asgi_call, asgi_scope, head, wsgi_call, wsgi_environ


class Rights:
    """The rights of each caller, until they are revoked; and what was asked."""

    def __init__(self) -> None:
        self.revoked: set[str] = set()
        self.asked: list[Wanted] = []

    def __call__(self, request: Any, wanted: Wanted) -> bool:
        self.asked.append(wanted)
        assert request["state"]["user"] == ALICE  # the request itself
        return wanted.caller.id not in self.revoked


def test_a_revoked_caller_gets_no_stored_answer(make_web: MakeWeb) -> None:
    rights = Rights()
    web = make_web(operations=[Operation("/orders/{id}/pay", name="pay")], may=rights)
    assert web.call(path="/orders/7/pay").status == 201
    assert rights.asked == [Wanted("pay", ALICE, (("id", "7"),))]
    assert web.call(path="/orders/7/pay").replayed
    rights.revoked.add("alice")
    for body, key in ((b"1", KEY), (b"2", KEY), (b"1", "a-new-key")):
        answer = web.call(path="/orders/7/pay", body=body, key=key)
        assert (answer.status, answer.code) == (403, "IDEMPOTENCY_CALLER_NOT_ALLOWED")
        assert "operation" not in answer.problem
        assert answer.link() is None
    assert len(web.seen) == len(web.records()) == 1


def test_the_status_of_an_operation_is_hidden_as_well(make_web: MakeWeb) -> None:
    rights = Rights()
    web = make_web(operations=[Operation("/payments", name="pay")], may=rights)
    web.call()
    place = f"/operations/{uuid_text(web.records()[0].operation_id)}"
    for path, query in ((place, ""), ("/operations", f"key={KEY}")):
        assert web.call(method="GET", path=path, query=query, key=None).status == 200
        assert rights.asked[-1] == Wanted("pay", ALICE)
        rights.revoked.add("alice")
        assert web.call(method="GET", path=path, query=query, key=None).code == "OPERATION_NOT_FOUND"
        rights.revoked.clear()


def test_may_is_called_again_after_a_wait(make_web: MakeWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    """A duplicate may wait for the first one, and a body may take long to arrive: rights can be revoked meanwhile."""
    said = [True]
    asked: list[bool] = []

    def may(request: Any, wanted: Wanted) -> bool:
        asked.append(said.pop(0))
        return asked[-1]

    web = make_web(may=may)
    assert web.call().status == 201
    said[:] = [True, False]
    assert web.call().replayed  # at once: asked once
    assert (said.pop(), said) == (False, [])
    monkeypatch.setattr("semel.http.exchange.ALLOWED_SECONDS", 0.0)  # as if each request had waited
    said[:] = [True, True]
    assert web.call().replayed
    for body in (b"1", b"2"):
        said[:] = [True, False]
        answer = web.call(body=body)
        assert (answer.status, answer.code) == (403, "IDEMPOTENCY_CALLER_NOT_ALLOWED")
        assert "operation" not in answer.problem
    said[:] = [True]
    assert web.call(key="a-new-key").status == 201  # the application itself looks
    assert len(web.seen) == 2


def test_an_unknown_outcome_is_hidden_as_well(make_web: MakeWeb) -> None:
    rights = Rights()
    web = make_web(lambda seen: Reply(status=500), Policy(effects="external"), may=rights)
    web.call()
    assert web.call().code == "IDEMPOTENCY_OUTCOME_UNKNOWN"
    rights.revoked.add("alice")
    assert web.call().code == "IDEMPOTENCY_CALLER_NOT_ALLOWED"


def test_an_exception_of_may_reaches_the_server_and_nothing_runs(make_web: MakeWeb) -> None:
    def may(request: Any, wanted: Wanted) -> bool:
        raise LookupError("the rights cannot be read")

    web = make_web(may=may)
    with pytest.raises(LookupError):
        web.call()
    assert (web.records(), web.seen) == ([], [])


class Unread:
    """A body that must not be read."""

    def read(self, *_: Any) -> bytes:
        raise AssertionError("the body was read")


def refuse(request: Any, wanted: Wanted) -> bool:
    return False


async def refuse_later(request: Any, wanted: Wanted) -> bool:
    return False


def test_the_body_of_a_revoked_caller_is_not_read() -> None:
    with Engine.connect("memory://") as engine:
        web = WsgiMiddleware(
            lambda *_: [], engine, caller=single_caller, operations=[Operation("/payments")], may=refuse
        )
        environ = wsgi_environ("POST", "/payments", "", head(KEY, [], [b"ab"]), b"ab", ALICE)
        assert wsgi_call(web, {**environ, "wsgi.input": Unread()}).status == 403


def test_a_coroutine_function_is_awaited_and_a_plain_one_runs_in_a_thread() -> None:
    threads: list[threading.Thread] = []

    class Asked:
        async def __call__(self, request: Any, wanted: Wanted) -> bool:
            threads.append(threading.current_thread())
            return False

    def plain(request: Any, wanted: Wanted) -> bool:
        threads.append(threading.current_thread())
        return False

    async def never(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("the application was called")

    async def main() -> None:
        async with AsyncEngine.connect("memory://") as engine:
            for may in (Asked(), plain):
                web = AsgiMiddleware(never, engine, caller=single_caller, operations=[Operation("/a")], may=may)
                scope = asgi_scope("POST", "/a", "", head(KEY, [], [b""]), ALICE)
                assert (await asgi_call(web, scope, [b""])).status == 403

    asyncio.run(main())
    assert [thread is threading.current_thread() for thread in threads] == [True, False]


def test_a_coroutine_is_no_permission() -> None:
    """A function that hides a coroutine function: what it returns is true to Python, and says nothing yet."""

    def deny_later(request: Any, wanted: Wanted) -> Any:
        return refuse_later(request, wanted)

    ran: list[str] = []

    def shop(environ: Any, start_response: Any) -> list[bytes]:
        ran.append("ran")
        return []

    with Engine.connect("memory://") as engine:
        web = WsgiMiddleware(shop, engine, caller=single_caller, operations=[Operation("/a")], may=deny_later)
        environ = wsgi_environ("POST", "/a", "", head(KEY, [], [b""]), b"", ALICE)
        with pytest.raises(TypeError, match="returned a coroutine, which is not awaited here"):
            wsgi_call(web, environ)

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        ran.append("ran")

    async def main() -> None:
        async with AsyncEngine.connect("memory://") as engine:
            web = AsgiMiddleware(serve, engine, caller=single_caller, operations=[Operation("/a")], may=deny_later)
            scope = asgi_scope("POST", "/a", "", head(KEY, [], [b""]), ALICE)
            assert (await asgi_call(web, scope, [b""])).status == 403

    asyncio.run(main())
    assert ran == []


def test_a_may_option_that_is_no_plain_function_is_refused() -> None:
    engine = Engine.connect("memory://")
    for may, message in ((refuse_later, "make it a plain function"), ("yes", "may must be a function")):
        with pytest.raises(ConfigurationError, match=message):
            WsgiMiddleware(lambda *_: [], engine, caller=single_caller, may=may)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="let one of them refuse"):
        Semel(AsyncEngine.connect("memory://"), caller=single_caller, may=refuse_later)  # type: ignore[call-arg]
