"""What of a request's head counts, on ASGI and WSGI alike: headers, parameters, content codings, digests."""

from __future__ import annotations

import gzip
import hashlib
from base64 import b64encode
from contextlib import closing
from typing import Any

import pytest

from semel.core.model import State
from semel.engine.sync_engine import Engine
from semel.errors import ConfigurationError
from semel.http.fingerprint.fingerprinter import Facts, NoBody, Recipe
from semel.http.routing import Operation
from semel.http.settings import HttpSettings
from semel.policy import Policy
from tests.web.conftest import MakeWeb
from tests.web.driving import ALICE, BODY, Headers, Reply, Seen, Web

REUSED = "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST"
PACKED, PACKED_ANEW = (gzip.compress(BODY, mtime=clock) for clock in (1, 2))
GZIP = ("Content-Encoding", "gzip")


def json_as(parameters: str) -> Headers:
    return [("Content-Type", f"application/json{parameters}")]


def account(*values: str) -> Headers:
    return [("Stripe-Account", value) for value in values]


def digest(body: bytes) -> Headers:
    return [("Content-Digest", f"sha-256=:{b64encode(hashlib.sha256(body).digest()).decode()}:")]


Sent = tuple[bytes, Headers]

SAME: list[tuple[Sent, Sent]] = [
    ((BODY, json_as("")), (BODY, json_as("; charset=utf-8"))),
    ((BODY, json_as("; charset=UTF-8")), (BODY, json_as(""))),
    ((BODY, json_as(';charset="utf-8"')), (b" " + BODY, json_as(";charset=utf8"))),
    ((BODY, json_as("; version=1")), (BODY, json_as(';Version="1"; charset=utf-8'))),
    ((PACKED, [GZIP]), (PACKED_ANEW, [GZIP])),
    ((PACKED, [GZIP]), (BODY, [])),
    ((BODY, []), (PACKED, [("Content-Encoding", "x-gzip, identity")])),
    ((b"brotli", [("Content-Encoding", "br")]), (b"brotli", [("Content-Encoding", "BR")])),
    ((BODY, []), (BODY, digest(BODY))),
    ((PACKED, [GZIP, *digest(PACKED)]), (PACKED_ANEW, [GZIP, *digest(PACKED_ANEW)])),
]
OTHER: list[tuple[Sent, Sent]] = [
    ((BODY, json_as("; version=1")), (BODY, json_as("; version=2"))),
    ((BODY, json_as("")), (BODY, json_as("; header=absent"))),
    ((BODY, json_as("; header=absent")), (BODY, json_as(""))),
    ((BODY, json_as("")), (BODY, json_as("; charset=utf-16"))),
    ((PACKED, [GZIP]), (PACKED, [])),
    ((PACKED, []), (PACKED, [GZIP])),
    ((BODY, []), (BODY, [("Content-Encoding", "br")])),
    ((b"x", [("Content-Encoding", "br")]), (b"x", [("Content-Encoding", "zstd")])),
    ((PACKED, [GZIP]), (gzip.compress(b"{}"), [GZIP])),
]


@pytest.mark.parametrize(("first", "again"), SAME)
@pytest.mark.parametrize("pieces", [False, True])
def test_the_same_request_in_another_spelling_is_replayed(web: Web, first: Sent, again: Sent, pieces: bool) -> None:
    web.handler = lambda seen: Reply(chunks=[f"call {len(web.seen)}".encode()])
    assert web.call(body=cut(first[0], pieces), headers=first[1]).body == b"call 1"
    replay = web.call(body=cut(again[0], pieces), headers=again[1])
    assert (replay.status, replay.body, replay.replayed) == (201, b"call 1", True)
    assert web.seen[0].body == first[0]  # as it came, with any coding


@pytest.mark.parametrize(("first", "again"), OTHER)
@pytest.mark.parametrize("pieces", [False, True])
def test_another_request_is_refused(make_web: MakeWeb, first: Sent, again: Sent, pieces: bool) -> None:
    web = make_web(policy=Policy(json="any"))  # some of these bodies are no JSON without their coding
    assert web.call(body=cut(first[0], pieces), headers=first[1]).status == 201
    refused = web.call(body=cut(again[0], pieces), headers=again[1])
    assert (refused.status, refused.code, len(web.seen)) == (422, REUSED, 1)


def cut(body: bytes, pieces: bool) -> Any:
    return [body[:7], body[7:]] if pieces else body


@pytest.mark.parametrize("reply", [Reply(), Reply(status=500), Reply(status=503)])
def test_a_retry_in_another_spelling_meets_every_state(make_web: MakeWeb, reply: Reply) -> None:
    web = make_web(lambda seen: reply)
    web.call(headers=json_as("; charset=utf-8"))
    first = [record.state for record in web.records()]
    assert web.call(headers=json_as("")).code != REUSED if first == [State.UNKNOWN] else True
    assert [record.state for record in web.records()] == first
    assert web.call(headers=json_as("; v=1")).code == REUSED


def test_a_released_key_runs_again_in_another_spelling(make_web: MakeWeb) -> None:
    replies = [Reply(status=429), Reply()]
    web = make_web(lambda seen: replies.pop(0))
    assert web.call(headers=json_as("; charset=utf-8")).status == 429
    assert web.call(headers=json_as("")).status == 201
    assert web.call(headers=json_as("; charset=utf-8")).replayed


# --- declared headers -----------------------------------------------------------------------------

COUNTS: list[tuple[str, dict[str, Any]]] = [("operation", {"policy": Policy(counts=("Stripe-Account", "if-match"))})]
COUNTS += [("application", {"counts": ("stripe-account", "if-match")})]
COUNTS += [("recipe", {"policy": Policy(fingerprint=Recipe(headers=("if-match", "stripe-account")))})]
WAYS = pytest.mark.parametrize("settings", [each for _, each in COUNTS], ids=[name for name, _ in COUNTS])


@WAYS
def test_a_declared_header_counts(make_web: MakeWeb, settings: dict[str, Any]) -> None:
    web = make_web(**settings)
    assert web.call(headers=account("acct_1")).status == 201
    assert web.call(headers=[*account(" acct_1 "), ("X-Other", "1")]).replayed
    for other in (
        [],
        account("acct_2"),
        account(""),
        account("acct_1", "acct_1"),
        [*account("acct_1"), ("If-Match", "*")],
    ):
        assert web.call(headers=other).code == REUSED
    assert len(web.seen) == 1


def test_several_lines_of_a_declared_header_count_in_their_order(make_web: MakeWeb) -> None:
    web = make_web(counts=("stripe-account",))
    assert web.call(headers=account("a", "b")).status == 201
    assert web.call(headers=account("a", "b")).replayed
    assert web.call(headers=account("b", "a")).code == REUSED


def test_without_a_declaration_no_other_header_counts(web: Web) -> None:
    assert web.call(headers=account("acct_1")).status == 201
    assert web.call(headers=account("acct_2")).replayed


def test_an_operation_that_names_its_headers_has_no_others(make_web: MakeWeb) -> None:
    web = make_web(policy=Policy(counts=("if-match",)), counts=("stripe-account",))
    assert web.call(headers=account("acct_1")).status == 201
    assert web.call(headers=account("acct_2")).replayed
    assert web.call(headers=[("If-Match", "1")]).code == REUSED


def test_a_recipe_of_before_the_header_counted_is_known_where_it_is_named(make_web: MakeWeb) -> None:
    web = make_web()
    web.call(headers=account("acct_1"))
    newer = Policy(counts=("stripe-account",))
    for known, status in (((), 500), ((Recipe(),), 201)):
        operations = [Operation("/payments", Policy(counts=newer.counts, fingerprints_known=known))]
        later = make_later(web, operations)
        assert later.call(headers=account("acct_1")).status == status
    assert len(web.seen) == 1


def make_later(web: Any, operations: list[Operation]) -> Any:
    """The same application, as a later release of it declares its operations."""
    web.middleware = type(web.middleware)(
        web.app, web.engine, caller=web.middleware.surface.caller, operations=operations
    )
    return web


def test_impossible_counted_headers_are_refused() -> None:
    def surface(policy: Policy | None = None, **settings: Any) -> None:
        operations = [Operation("/payments", policy or Policy())]
        with closing(Engine.connect("memory://")) as engine:
            HttpSettings(engine=engine, caller=lambda request: ALICE, operations=operations, **settings)

    with pytest.raises(ConfigurationError, match="the key never counts"):
        surface(counts=("Idempotency-Key",))
    with pytest.raises(ConfigurationError, match="the key never counts"):
        surface(Policy(counts=("x-key",)), key_header="X-Key")
    with pytest.raises(ConfigurationError, match="credentials"):
        surface(counts=("Cookie",))
    with pytest.raises(ConfigurationError, match="not both"):
        Policy(counts=("a",), fingerprint=Recipe(headers=("b",)))


# --- digests --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [False, True])
def test_a_body_that_its_digest_contradicts_is_refused_and_frees_the_key(web: Web, pieces: bool) -> None:
    for wrong in (digest(b"other"), [("Content-Digest", "sha-256=abc")], digest(gzip.compress(BODY))):
        refused = web.call(body=cut(BODY, pieces), headers=wrong)
        assert (refused.status, refused.code) == (400, "IDEMPOTENCY_REQUEST_INVALID")
    assert (web.seen, web.records()) == ([], [])
    assert web.call(body=cut(BODY, pieces), headers=digest(BODY)).status == 201


# --- functions and no body ------------------------------------------------------------------------


def first_member(facts: Facts, body: bytes) -> bytes:
    return facts.operation.encode() + body.partition(b",")[0]


@pytest.mark.parametrize("pieces", [False, True])
def test_a_function_chooses_the_counted_part_of_the_body(make_web: MakeWeb, pieces: bool) -> None:
    web = make_web(policy=Policy(fingerprint=first_member))
    assert web.call(body=cut(b'{"amount":1,"sent":1}', pieces)).status == 201
    assert web.call(body=cut(b'{"amount":1,"sent":2}', pieces)).replayed
    assert web.call(body=cut(b'{"amount":2,"sent":2}', pieces)).code == REUSED


def test_a_body_outside_the_fingerprint_does_not_make_another_command(make_web: MakeWeb) -> None:
    web = make_web(policy=Policy(fingerprint=NoBody(), json="any"))
    assert web.call(body=b"one").status == 201
    assert web.call(body=b"two").replayed
    assert web.call(body=b"two", query="a=1").code == REUSED


def test_an_unreadable_coding_reaches_the_application_as_it_came(make_web: MakeWeb) -> None:
    seen: list[Seen] = []
    web = make_web(lambda each: seen.append(each) or Reply())  # type: ignore[func-returns-value]
    web.call(body=b"not gzip", headers=[GZIP])
    assert [each.body for each in seen] == [b"not gzip"]
