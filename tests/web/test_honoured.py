"""Every answer that follows a claim says for how long the key is honoured and where the status is; no other does."""

from __future__ import annotations

import json

import pytest

from semel import Engine
from semel.errors import ConfigurationError, StoreUnavailable
from semel.http.caller import single_caller
from semel.http.headers import Honoured
from semel.http.problems import Problems
from semel.http.routing import Operation
from semel.http.settings import HttpSettings
from semel.policy import Policy
from tests.web.conftest import MakeWeb
from tests.web.driving import Reply, Response

LIFETIME = "idempotency-key-lifetime"
HOUR = Policy(answer_seconds=3600)


def has_lifetime(answer: Response) -> bool:
    """Whether the key of an answer is honoured for an hour, with a link to its status."""
    if answer.header(LIFETIME) is None:
        return False
    assert answer.header(LIFETIME) == "3600"
    link = answer.link()
    assert link is not None
    assert link.startswith("/operations/")
    return True


def test_first_answers_replays_and_refusals_have_the_lifetime_header(make_web: MakeWeb) -> None:
    web = make_web(policy=HOUR)
    first, again, other = web.call(), web.call(), web.call(body=b'{"amount":1}')
    assert [answer.status for answer in (first, again, other)] == [201, 201, 422]
    assert all(has_lifetime(answer) for answer in (first, again, other))
    assert {first.link(), again.link(), other.link()} == {first.link()}
    assert json.loads(web.call(method="GET", path=first.link() or "", key=None).body)["state"] == "SUCCEEDED"


@pytest.mark.parametrize("status", [200, 204, 401, 404, 422, 500, 503])
def test_every_application_answer_has_the_lifetime_header(make_web: MakeWeb, status: int) -> None:
    web = make_web(lambda seen: Reply(status=status, chunks=[]), policy=HOUR)
    assert has_lifetime(web.call())
    assert has_lifetime(web.call())


def test_an_answer_that_cannot_be_stored_has_the_lifetime_header(make_web: MakeWeb) -> None:
    web = make_web(
        lambda seen: Reply(chunks=[b"x" * 10, b"y" * 10]), policy=Policy(answer_seconds=3600, answer_bytes_max=5)
    )
    first, again = web.call(), web.call()
    assert (first.body, first.status, again.code) == (b"x" * 10 + b"y" * 10, 201, "IDEMPOTENCY_RESPONSE_NOT_REPLAYABLE")
    assert has_lifetime(first)
    assert has_lifetime(again)


def test_refusals_before_the_claim_have_no_lifetime_header(make_web: MakeWeb) -> None:
    web = make_web(policy=HOUR)
    answers = [
        web.call(key=None),
        web.call(key="a b"),
        web.call(caller=None),
        web.call(body=b"{"),
    ]
    assert [answer.status for answer in answers] == [400, 400, 401, 400]
    assert not any(has_lifetime(answer) for answer in answers)
    assert [answer.link() for answer in answers] == [None] * 4


def test_an_unprotected_request_has_no_lifetime_header(make_web: MakeWeb) -> None:
    web = make_web(policy=Policy(key="optional", answer_seconds=3600))
    assert not has_lifetime(web.call(key=None))


def test_an_unavailable_store_sends_no_lifetime(make_web: MakeWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    web = make_web(policy=HOUR)

    def refuse(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(web.engine, "claim", refuse)
    monkeypatch.setattr(web.engine, "_claim_into", refuse, raising=False)
    answer = web.call()
    assert answer.status == 503
    assert not has_lifetime(answer)


def test_the_header_may_have_another_name_or_none(make_web: MakeWeb) -> None:
    web = make_web(operations=[Operation("/payments", HOUR)], lifetime_header="X-Key-Lives")
    assert web.call().header("x-key-lives") == "3600"
    web = make_web(operations=[Operation("/payments", HOUR)], lifetime_header=None)
    answer = web.call()
    assert answer.header(LIFETIME) is None
    assert answer.link() is not None
    with pytest.raises(ConfigurationError, match="lifetime_header must be a header name"):
        HttpSettings(engine=Engine.connect("memory://"), caller=single_caller, lifetime_header="a b")


def test_without_a_status_resource_there_is_the_lifetime_alone(make_web: MakeWeb) -> None:
    web = make_web(operations=[Operation("/payments", HOUR)], problems=Problems(operations_path=None))
    answer = web.call()
    assert (answer.header(LIFETIME), answer.link()) == ("3600", None)


def test_a_refusal_links_to_a_public_page(make_web: MakeWeb) -> None:
    web = make_web(policy=HOUR)
    page, _, anchor = (web.call(key=None).link("describedby") or "").partition("#")
    for method in ("GET", "HEAD"):
        answer = web.call(method=method, path=page, key=None, caller=None)
        assert (answer.status, answer.header("content-type")) == (200, "text/html; charset=utf-8")
        assert (f'id="{anchor}"'.encode() in answer.body) is (method == "GET")
    assert web.seen == []


def test_an_application_that_serves_the_operations_serves_the_page(make_web: MakeWeb) -> None:
    web = make_web(operations=[Operation("/payments", HOUR)], serve_operations=False)
    assert web.call(method="GET", path="/operations/problems", key=None).body == b"paid"


def test_a_damaged_operation_id_gets_no_link() -> None:
    honoured = Honoured("Idempotency-Key-Lifetime", 60, "/operations/{id}")
    assert honoured.headers(b"short") == ((b"idempotency-key-lifetime", b"60"),)
