"""Declarations: callers, operations, settings; and the small readers beside them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import pytest

from semel.core.model import Answer
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError, PolicyError
from semel.http import caller as callers
from semel.http.caller import Caller, from_environ, from_state, from_user, single_caller
from semel.http.capture import Capture, Keeping
from semel.http.exchange import Exchange, open_exchange
from semel.http.fingerprint.fingerprinter import Facts, Recipe
from semel.http.headers import parse_wait
from semel.http.routing import Operation, Routes
from semel.http.settings import HttpSettings
from semel.http.spool import Spool
from semel.policy import NEVER_REPLAYED, Policy
from semel.quota import Quota


class User:
    def __init__(self, identity: object, is_authenticated: bool = True) -> None:
        self.identity = identity
        self.is_authenticated = is_authenticated


# --- the caller ---


@pytest.mark.parametrize("tenant", ["", None, 0, b"acme", "x" * 256, "\ud800"])
def test_a_caller_has_two_texts_that_are_not_empty(tenant: Any) -> None:
    with pytest.raises(ConfigurationError):
        Caller(tenant, "alice")
    with pytest.raises(ConfigurationError):
        Caller("acme", tenant)


@pytest.mark.parametrize("name", ["null", "0", "caf\xe9", "a/b:c"])
def test_a_caller_may_have_any_name(name: str) -> None:
    assert Caller(name, name) == Caller(name, name) != Caller(name, "other")


class Who(StrEnum):
    """Texts of the application's own class."""

    ALICE = "alice"


def test_a_callers_names_are_plain_texts() -> None:
    made = Caller(Who.ALICE, Who.ALICE)
    assert made == Caller("alice", "alice")
    assert {type(made.tenant), type(made.id)} == {str}


def test_callers_are_read_from_the_documented_places() -> None:
    alice = Caller("acme", "alice")
    assert from_state("user", tenant="acme")({"state": {"user": "alice"}}) == alice
    assert from_state("user")({"state": {"user": alice}}) == alice
    assert from_environ("REMOTE_USER", tenant="acme")({"REMOTE_USER": "alice"}) == alice
    assert from_user(tenant="acme")({"user": User("alice")}) == alice
    assert single_caller({}) == single_caller({"state": {"user": "bob"}})


def test_a_state_that_is_never_set_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callers, "_SEEN", set())
    requests: Sequence[Any] = ({"state": {}}, {}, {"state": {"other": "alice"}})
    for request in requests:
        assert from_state("user")(request) is None
    [told] = caplog.records
    assert (told.name, told.levelname) == ("semel", "WARNING")
    assert "no middleware has set request.state.user" in told.getMessage()
    assert "request.state.user = user.id" in told.getMessage()
    assert from_state("account")({"state": {}}) is None
    assert len(caplog.records) == 2


@pytest.mark.parametrize("first", [{"user": None}, {"user": ""}, {"user": "alice"}])
def test_a_state_that_is_set_is_not_logged(
    first: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callers, "_SEEN", set())
    from_state("user")({"state": first})
    if first["user"]:  # some requests are anonymous, and that is not a mistake
        assert from_state("user")({"state": {}}) is None
    assert not caplog.records


def test_an_unset_state_is_an_unknown_caller() -> None:
    requests: Sequence[Any] = ({}, {"state": {}}, {"state": {"user": None}}, {"state": {"user": ""}}, {"user": None})
    for request in requests:
        assert from_state("user")(request) is None
        assert from_user()(request) is None
        assert from_environ("REMOTE_USER")(request) is None
    assert from_user()({"user": User("alice", is_authenticated=False)}) is None


def test_an_invalid_caller_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="neither a text nor a Caller"):
        from_state("user")({"state": {"user": {"id": 7}}})
    with pytest.raises(ConfigurationError, match="any client can send"):
        from_environ("HTTP_X_USER")
    with pytest.raises(ConfigurationError):
        from_state("user", tenant="")


# --- operations ---


@pytest.mark.parametrize(
    ("method", "path", "name", "params"),
    [
        ("POST", "/orders", "POST /orders", ()),
        ("POST", "/orders/7/cancel", "POST /orders/{id}/cancel", (("id", "7"),)),
        ("PUT", "/orders/7", "replace-order", (("id", "7"),)),
        ("DELETE", "/orders/7", "replace-order", (("id", "7"),)),
        ("POST", "/orders/special/cancel", "POST /orders/special/cancel", ()),
        ("POST", "/files/a/b/c", "POST /files/{rest:path}", (("rest", "a/b/c"),)),
        ("POST", "/orders/", None, None),
        ("POST", "/orders//cancel", None, None),
        ("POST", "/orders/7/8/cancel", None, None),
        ("POST", "/files/", None, None),
        ("GET", "/orders", None, None),
        ("post", "/orders", None, None),
        ("POST", "", None, None),
    ],
)
def test_a_request_is_matched(method: str, path: str, name: str | None, params: Any) -> None:
    routes = Routes(
        [
            Operation("/orders/{id}/cancel"),
            Operation("/orders/special/cancel"),
            Operation("/orders"),
            Operation("/orders/{id:int}", Policy(), ("put", "delete"), "replace-order"),
            Operation("/files/{rest:path}"),
        ]
    )
    found = routes.find(method, path)
    assert (found and found[0].name, found and found[1]) == (name, params)


@pytest.mark.parametrize(
    "operations",
    [
        [{"template": "orders"}],
        [{"template": "/orders/{id"}],
        [{"template": "/orders/a{id}"}],
        [{"template": "/orders/{}"}],
        [{"template": "/orders/{id}/{id}"}],
        [{"template": "/{rest:path}/tail"}],
        [{"template": "/orders", "methods": "POST"}],
        [{"template": "/orders", "methods": ()}],
        [{"template": "/orders", "methods": ("GET",)}],
        [{"template": "/orders", "name": ""}],
        [{"template": "/orders", "policy": {"effects": "external"}}],
        [{"template": "/orders"}, {"template": "/orders"}],
        [{"template": "/orders/{a}"}, {"template": "/orders/{b}"}],
        [{"template": "/a", "name": "pay"}, {"template": "/b", "name": "pay"}],
    ],
)
def test_impossible_operations_are_refused(operations: list[dict[str, Any]]) -> None:
    with pytest.raises(ConfigurationError):
        Routes([Operation(**operation) for operation in operations])


# --- settings ---


def surface(**settings: Any) -> HttpSettings:
    return HttpSettings.of(Engine.connect("memory://"), settings)


def test_a_caller_function_is_required_by_the_surface() -> None:
    with pytest.raises(ConfigurationError) as refused:
        surface()
    assert '    caller=from_state("user"),' in str(refused.value)
    assert "    from semel.http import from_state, single_caller" in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"caller": "alice"},
        {"key_header": "Idempotency Key"},
        {"replayed_header": ""},
        {"wait_seconds_max": -1},
        {"wait_seconds_max": True},
        {"operations": [Operation("/a", Policy(effects="atomic"))]},
        {"default": Policy(effects="atomic")},
        {"operations": [Operation("/a", Policy(fingerprint=Recipe(algorithm="hmac-sha256")))]},
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        surface(**{"caller": single_caller, **settings})


def test_an_unknown_setting_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'operations'"):
        surface(caller=single_caller, operation=[])
    with pytest.raises(ConfigurationError, match="known options"):
        surface(caller=single_caller, zzz=1)


def test_a_secret_makes_other_fingerprints() -> None:
    policy = Policy(fingerprint=Recipe(algorithm="hmac-sha256"), fingerprints_known=(Recipe(),))
    found = []
    for secret in (b"a" * 16, b"b" * 16):
        made = surface(caller=single_caller, fingerprint_secret=secret)
        exchange = open_exchange(made, made.route("pay", policy), (), "POST", b"", [(b"idempotency-key", b"k")], {})
        assert isinstance(exchange, Exchange)
        command = exchange.command(b"{}")
        assert not isinstance(command, Answer)
        found.append(command.fingerprint)
        assert command.under is not None
        assert command.under(Recipe().id) not in (None, command.fingerprint)
        assert command.under("1.unknown") is None
    assert found[0] != found[1]
    with pytest.raises(PolicyError):
        surface(caller=single_caller).route("pay", policy)


@pytest.mark.parametrize(
    "body",
    [
        b'{"to": "bob", "amount": 5}',
        '{"to": "bob", "name": "B\u00f6b", "note": "\\u00e5\\n"}'.encode(),
        '{"\ufb33": 1, "\U0001f600": 2}'.encode(),
        b'{"amount": 12.50, "rate": 1e-3}',
        b'{"amount": 1, "amount": 2}',
    ],
)
@pytest.mark.parametrize(
    "policy",
    [Policy(), Policy(quota=Quota(open_at_once=1)), Policy(key_from="body:/to"), Policy(counts=("if-match",))],
    ids=["plain", "quota", "key from the body", "a header counts"],
)
def test_what_is_prepared_for_a_caller_gives_the_fingerprint_of_the_recipe(policy: Policy, body: bytes) -> None:
    made = surface(caller=single_caller)
    route = made.route("pay", policy)
    head = [(b"idempotency-key", b"k"), (b"content-type", b"application/json"), (b"if-match", b"1")]
    exchange = open_exchange(made, route, (("id", "7"),), "POST", b"a=b", head, {})
    assert isinstance(exchange, Exchange)
    command = exchange.command(body)
    if isinstance(command, Answer):
        assert (command.status, b"to" in body) == (400, False)  # there is no key
        return
    extra = (("if-match", "1"),) if policy.counts else ()
    media = "application/json"
    caller = exchange.scope.tenant, exchange.scope.caller
    facts = Facts("pay", "POST", (("id", "7"),), b"a=b", *caller, media, extra)
    assert (route.fingerprinter.ids[0], command.fingerprint) == route.fingerprinter.identify(facts, body)
    assert command.recipe == route.recipe


def test_a_caller_function_that_returns_something_else_is_refused() -> None:
    made = surface(caller=lambda request: "alice")
    with pytest.raises(ConfigurationError, match="must return a Caller"):
        open_exchange(made, made.route("pay", Policy()), (), "POST", b"", [(b"idempotency-key", b"k")], {})


# --- Prefer ---


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        ([b"wait=10"], 10),
        ([b"wait = 10"], 10),
        ([b'WAIT="10"'], 10),
        ([b"return=minimal; foo, wait=4"], 4),
        ([b"wait=4, wait=9"], 4),
        ([b'x="a, wait=9", wait=3'], 3),
        ([b"respond-async", b"wait=2"], 2),
        ([b"wait=1;wait=2"], 1),
        ([b"wait"], None),
        ([b"wait=0x10"], None),
        ([b"await=5"], None),
        ([b"wait=" + b"1" * 10], None),
        ([b'"' * 500], None),
        ([b"a" * 2000 + b", wait=1"], None),
        ([], None),
    ],
)
def test_the_preferred_wait_is_parsed(lines: list[bytes], seconds: int | None) -> None:
    assert parse_wait(lines) == seconds


# --- capture and spool ---


def test_only_the_allowed_headers_are_stored() -> None:
    assert Keeping(Policy()).headers.isdisjoint(NEVER_REPLAYED)
    capture = Capture(Keeping(Policy()))
    names = [b"Content-Type", b"LOCATION", *NEVER_REPLAYED - {b"content-length"}, b"x-own"]
    assert capture.start(200, [(name, b"1") for name in names])
    assert capture.to_store().headers == ((b"content-type", b"1"), (b"location", b"1"))
    assert len(capture.first().headers) == len(names)


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\x00", b"\x7f", b"a\nb"])
def test_a_value_that_would_split_a_response_is_not_stored(value: bytes) -> None:
    capture = Capture(Keeping(Policy()))
    capture.start(200, [(b"location", value), (b"etag", b"a\tb")])
    assert capture.to_store().headers == ((b"etag", b"a\tb"),)


def test_an_answer_of_exactly_the_limit_is_stored() -> None:
    capture = Capture(Keeping(Policy(answer_bytes_max=4)))
    assert capture.start(200, [(b"content-length", b"4")])
    assert [capture.add(piece) for piece in (b"ab", b"", b"cd")] == [True, True, True]
    assert capture.to_store().body == b"abcd"
    assert not capture.add(b"e")
    assert not Capture(Keeping(Policy(answer_bytes_max=4))).start(200, [(b"content-length", b"5")])


@pytest.mark.parametrize("status", [204, 205, 304])
def test_a_status_without_a_body_has_none(status: int) -> None:
    capture = Capture(Keeping(Policy(answer_bytes_max=4)))
    assert capture.start(status, [(b"content-length", b"5000")])
    assert capture.add(b"x" * 5000)
    assert capture.first() == Answer(status, (), b"")


def test_a_head_is_cached_if_it_describes_only_the_body() -> None:
    keeping = Keeping(Policy())
    ordinary = [(b"Content-Type", b"text/plain"), (b"Content-Length", b"4")]
    for headers in (ordinary, [*ordinary, (b"Set-Cookie", b"a=b")], [(b"location", b"/payments/1")], [*ordinary] * 2):
        for _ in range(2):
            capture = Capture(keeping)
            assert capture.start(201, headers)
            assert capture.add(b"done")
            capture.end()
            assert capture.first() == Answer(201, tuple(headers), b"done")
    assert [headers for _, headers in keeping.heads] == [tuple(ordinary)]
    for size in range(1_000):
        Capture(keeping).start(200, [(b"content-length", b"%d" % size)])
    assert len(keeping.heads) <= 256


def test_headers_in_another_form_of_bytes_are_stored_as_bytes() -> None:
    capture = Capture(Keeping(Policy()))
    capture.start(200, [[b"ETag", bytearray(b" x")]])  # type: ignore[list-item]
    assert [(type(name), type(value)) for name, value in capture.to_store().headers] == [(bytes, bytes)]


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_reused_buffer_is_stored_as_it_was_sent(pieces: int) -> None:
    """Servers take such a piece at once, so that an application may read its next one into the same buffer."""
    capture, buffer = Capture(Keeping(Policy())), bytearray(4)
    assert capture.start(200, [(b"content-length", b"%d" % (4 * pieces))])
    for number in range(pieces):
        buffer[:] = b"%04d" % number
        assert capture.add(memoryview(buffer))  # type: ignore[arg-type]
    buffer[:] = b"lost"
    capture.end()
    sent = b"".join(b"%04d" % number for number in range(pieces))
    assert capture.to_store() == capture.first()._replace(headers=()) == Answer(200, (), sent)
    assert type(capture.body) is bytes


@pytest.mark.parametrize("size", [0, 10, 3_000_000])
def test_a_spool_is_read_as_often_as_needed(size: int) -> None:
    spool = Spool()
    for _ in range(10):
        spool.write(b"x" * (size // 10))
    assert b"".join(spool.chunks()) == b"".join(spool.chunks()) == spool.open().read() == b"x" * size
    assert spool.on_disk is (size > 1_000_000)
    spool.close()
