"""The status resource behind a middleware: where the links of its answers lead, without being asked for."""

from __future__ import annotations

from typing import Any

import pytest

from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError
from semel.http.caller import single_caller
from semel.http.problems import Problems
from semel.http.routing import Operation
from semel.http.wsgi.middleware import SemelMiddleware as WsgiMiddleware
from semel.policy import Policy
from tests.web.conftest import MakeWeb
from tests.web.driving import ALICE, BOB, KEY, Reply, WsgiWeb, head, wsgi_call, wsgi_environ

NAMED = [Operation("/payments", Policy(), name="payments.create"), Operation("/orders/{id}", Policy())]
NO_OPERATION = "/operations/00000000-0000-4000-8000-000000000000"


def link_of(answer: Any) -> str:
    link: str = answer.link()
    return link


def test_the_link_of_an_unknown_outcome_leads_to_its_status(make_web: MakeWeb) -> None:
    web = make_web(lambda seen: Reply(status=500), operations=NAMED)
    link = link_of(web.call())
    assert link_of(web.call()) == link
    answer = web.call(method="GET", path=link, key=None)
    assert (answer.status, b'"state": "UNKNOWN"' in answer.body) == (200, True)
    assert web.call(method="HEAD", path=link, key=None).body == b""
    assert web.call(method="GET", path=link, key=None, caller=BOB).code == "OPERATION_NOT_FOUND"
    assert web.call(method="GET", path=link, key=None, caller=None).status == 401
    assert web.call(method="GET", path="/operations", query=f"key={KEY}", key=None).status == 200
    assert web.call(method="GET", path="/operations", query="reference=none", key=None).status == 404


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("GET", "/operations", ""),
        ("GET", "/operations/", "page=2"),
        ("GET", "/operations/theatre", ""),
        ("GET", f"{NO_OPERATION}/notes", ""),
        ("DELETE", NO_OPERATION, ""),
        ("GET", "/operationsX", "key=a"),
    ],
)
def test_the_applications_own_pages_below_operations_are_served(
    make_web: MakeWeb, method: str, path: str, query: str
) -> None:
    web = make_web(operations=NAMED)
    assert web.call(method=method, path=path, query=query, key=None).status == 201
    assert len(web.seen) == 1


def test_an_application_may_serve_the_status_itself(make_web: MakeWeb) -> None:
    web = make_web(lambda seen: Reply(status=500), operations=NAMED, serve_operations=False)
    link = link_of(web.call())
    web.handler = lambda seen: Reply(status=200)
    assert web.call(method="GET", path=link, key=None).body == b"paid"


@pytest.mark.parametrize("path", [None, "https://status.example/operations/{id}", "/operations/{id}/status"])
def test_a_path_that_the_middleware_cannot_serve_passes(make_web: MakeWeb, path: str | None) -> None:
    web = make_web(lambda seen: Reply(status=500), operations=NAMED, problems=Problems(operations_path=path))
    answer = web.call()
    assert (answer.link() is None) == (path is None)
    web.handler = lambda seen: Reply()
    assert web.call(method="GET", path=NO_OPERATION, key=None).status == 201


def test_a_mounted_application_serves_it_below_its_mount() -> None:
    problems = Problems(operations_path="/api/operations/{id}")
    web = WsgiWeb(lambda seen: Reply(status=500), operations=NAMED, problems=problems)
    try:
        link = link_of(web.call())
        environ = wsgi_environ("GET", link.removeprefix("/api"), "", head(None, [], [b""]), b"", ALICE)
        assert wsgi_call(web.middleware, {**environ, "SCRIPT_NAME": "/api"}).status == 200
    finally:
        web.close()


def test_a_setting_of_the_other_surface_is_refused_with_its_own_remedy() -> None:
    engine = Engine.connect("memory://")
    with pytest.raises(ConfigurationError, match="run `semel worker` as a separate process"):
        WsgiMiddleware(lambda *_: [], engine, caller=single_caller, manage_engine=True)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="did you mean 'serve_operations'"):
        WsgiMiddleware(lambda *_: [], engine, caller=single_caller, serve_operation=True)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="waiters_max must be a whole number"):
        WsgiMiddleware(lambda *_: [], engine, caller=single_caller, waiters_max=-1)
