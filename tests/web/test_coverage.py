"""Requests that no operation is declared for: what is refused, what passes, and several templates of one operation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask, request

from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError
from semel.http.asgi import middleware
from semel.http.caller import single_caller
from semel.http.routing import Operation, Routes
from semel.http.settings import HttpSettings
from semel.http.spelling import normal_raw_segments, normal_segments
from semel.http.wsgi.middleware import SemelMiddleware
from semel.policy import Policy
from tests.web.conftest import MakeWeb
from tests.web.driving import KEY, AsgiWeb, Reply, asgi_call, asgi_scope


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *[("POST", path) for path in ("//payments", "/payments/", "/PAYMENTS", "/x/../payments", "/payments;v=1", "")],
        *[(method, "/payments") for method in ("post", "Post")],
    ],
)
def test_a_misspelled_command_is_refused_with_the_right_spelling(make_web: MakeWeb, method: str, path: str) -> None:
    web = make_web(operations=[Operation("/payments"), Operation("/")])
    answer = web.call(method=method, path=path)
    assert (answer.status, answer.code) == (400, "IDEMPOTENCY_OPERATION_MISSPELLED")
    template = "/payments" if path else "/"
    assert f"Send it as POST {template}," in answer.problem["detail"]
    assert answer.problem["keyAction"] == "keep"
    assert web.seen == []
    assert web.records() == []


@pytest.mark.parametrize("header", ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"])
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_method_that_a_header_gives_never_runs_a_command_unprotected(
    make_web: MakeWeb, method: str, header: str
) -> None:
    web = make_web(operations=[Operation("/orders/{id}", methods=("PUT",))])
    answer = web.call(method=method, path="/orders/7", headers=[(header, "put")])
    assert (answer.status, answer.code) == (400, "IDEMPOTENCY_OPERATION_MISSPELLED")
    assert "Send it as PUT /orders/{id}, without the header" in answer.problem["detail"]
    assert web.seen == []
    assert web.call(method=method, path="/others/7", headers=[(header, "put")]).status == 201


def test_a_misspelled_command_is_refused_before_the_default_policy(make_web: MakeWeb) -> None:
    web = make_web(operations=[Operation("/payments")], default=Policy())
    assert web.call(path="//payments").code == "IDEMPOTENCY_OPERATION_MISSPELLED"
    assert web.call(path="/others").status == 201
    assert web.call(path="/others").replayed


@pytest.mark.parametrize(("method", "path"), [("GET", "//payments"), ("POST", "/payments/7"), ("PUT", "/payments")])
def test_other_requests_pass(make_web: MakeWeb, method: str, path: str) -> None:
    web = make_web(operations=[Operation("/payments")])
    assert web.call(method=method, path=path).status == 201
    assert web.seen[0].permit is None


def test_templates_of_one_operation_share_its_keys(make_web: MakeWeb) -> None:
    declared = Operation("/orders/{id}/pay", name="pay", also=("/orders/{id}/pay/", "/pay/{id}"))
    web = make_web(operations=[declared])
    assert not web.call(path="/orders/7/pay").replayed
    assert web.call(path="/orders/7/pay/").replayed
    assert web.call(path="/pay/7").replayed
    assert web.call(path="/pay/8").status == 422
    assert len(web.seen) == 1


@pytest.mark.parametrize(
    ("also", "message"),
    [
        ("/b/{id}", "takes a tuple"),
        (("b/{id}",), "starts with a slash"),
        (("/b",), "same parameters"),
        (("/b/{number}",), "same parameters"),
        (("/a/{id}",), "declared twice"),
    ],
)
def test_templates_that_cannot_be_one_operation_are_refused(also: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Routes([Operation("/a/{id}", also=also)])


@pytest.mark.parametrize(
    ("uncovered", "keyed", "unkeyed"), [("pass", 201, 201), ("refuse-keyed", 400, 201), ("refuse", 400, 400)]
)
def test_requests_that_nothing_covers_are_refused_where_declared_so(
    make_web: MakeWeb, uncovered: str, keyed: int, unkeyed: int
) -> None:
    web = make_web(operations=[Operation("/payments")], uncovered=uncovered)
    for key, status in ((KEY, keyed), (None, unkeyed)):
        answer = web.call(path="/others", key=key)
        assert answer.status == status
        assert status == 201 or answer.code == "IDEMPOTENCY_OPERATION_NOT_DECLARED"
        assert web.call(method="GET", path="/others", key=key).status == 201
        assert web.call(path="/payments", key=KEY).status == 201


def test_a_passed_request_does_not_let_one_with_a_key_or_an_override_pass(make_web: MakeWeb) -> None:
    web = make_web(operations=[Operation("/orders/{id}", methods=("PUT",))], uncovered="refuse-keyed")
    for _ in range(2):
        assert web.call(path="/orders/7", key=None).status == 201
        assert web.call(path="/orders/7").code == "IDEMPOTENCY_OPERATION_NOT_DECLARED"
        overriding = web.call(path="/orders/7", key=None, headers=[("X-HTTP-Method-Override", "PUT")])
        assert overriding.code == "IDEMPOTENCY_OPERATION_MISSPELLED"
        assert web.call(method="PUT", path="/orders/7", key=None).code == "MISSING_IDEMPOTENCY_KEY"
        assert web.call(method="put", path="/orders/7", key=None).code == "IDEMPOTENCY_OPERATION_MISSPELLED"
    assert len(web.seen) == 2


@pytest.fixture
def asgi() -> Iterator[AsgiWeb]:
    web = AsgiWeb(lambda seen: Reply(), operations=[Operation("/orders/{id}")], caller=single_caller)
    yield web
    web.close()


def test_a_path_that_passed_is_judged_again_where_it_came_otherwise_over_the_wire(asgi: AsgiWeb) -> None:
    """A server decodes a path once; the application may take the one on the wire, or decode it once more."""

    def ask(raw: bytes, mount: str = "") -> int:
        scope = asgi_scope("POST", "/or%64ers", "", [], None) | {"raw_path": raw, "root_path": mount}
        return asgi.runner.run(asgi_call(asgi.middleware, scope, [b""])).status

    for _ in range(2):
        assert ask(b"/or%2564ers") == 201
        assert ask(b"/orders/7%00") == 400
        assert ask(b"/or%2564ers", "/or%64ers") == 201


def test_only_so_many_paths_that_passed_are_remembered(asgi: AsgiWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "_PLACES_MAX", 3)
    for number in range(10):
        assert asgi.call(path=f"/others/{number}", key=None).status == 201
    assert asgi.call(path="/" + 600 * "x", key=None).status == 201
    assert asgi.call(path="/operations", query="key=k", method="GET", key=None).status != 201
    assert 1 <= len(asgi.middleware._passing) <= 3
    assert all(len(path) < 600 for _, path, *_ in asgi.middleware._passing)


def test_an_impossible_setting_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="uncovered must be one of 'pass', 'refuse-keyed', 'refuse'"):
        HttpSettings.of(Engine.connect("memory://"), {"caller": single_caller, "uncovered": "strict"})


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/orders/7", True),
        ("/orders/0", True),
        ("/orders/07", False),
        ("/orders/7\n", False),
        ("/orders/seven", False),
        ("/users/00000000-0000-4000-8000-00000000000a", True),
        ("/users/00000000-0000-4000-8000-00000000000A", False),
        ("/users/00000000000040008000000000000000", False),
        ("/notes/a b", True),
        ("/notes/a\n", False),
        ("/notes/a\udcff", False),
    ],
)
def test_a_converted_parameter_has_one_spelling(path: str, found: bool) -> None:
    routes = Routes([Operation("/orders/{id:int}"), Operation("/users/{id:uuid}"), Operation("/notes/{id}")])
    assert (routes.find("POST", path) is not None) == found
    assert routes.find_misspelled("POST", normal_segments(path)) is not None


@pytest.mark.parametrize(("path", "segments"), [("/a/{rest:path}", True), ("/a", False)])
def test_a_parameter_of_several_segments_is_found_misspelled(path: str, segments: bool) -> None:
    routes = Routes([Operation(path)])
    assert (routes.find_misspelled("post", normal_segments("//A/b/c")) is not None) == segments
    assert routes.find_misspelled("POST", normal_segments("/b/a")) is None


def test_an_encoded_slash_is_seen_in_the_raw_path() -> None:
    assert normal_raw_segments(b"/orders/a%2Fb/pay?x=1") == ["orders", "a/b", "pay"]


def test_flask_still_redirects_to_the_declared_spelling() -> None:
    app = Flask("shop")
    paid: list[str] = []

    @app.post("/pay/")
    def pay() -> tuple[str, int]:
        paid.append(request.path)
        return "paid", 201

    with Engine.connect("memory://") as engine:
        operations = [Operation("/pay/", Policy(effects="external"))]
        app.wsgi_app = SemelMiddleware(  # type: ignore[method-assign]
            app.wsgi_app, engine, caller=single_caller, operations=operations
        )
        client = app.test_client()
        for replayed in (None, "true"):
            answer = client.post("/pay", headers={"Idempotency-Key": KEY}, follow_redirects=True)
            assert (answer.status_code, answer.headers.get("idempotency-replayed")) == (201, replayed)
    assert paid == ["/pay/"]
