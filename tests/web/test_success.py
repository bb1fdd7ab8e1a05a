"""A 2xx answer whose body says an error is not a success, where the policy's own function says so."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from semel.core.model import Answer, State
from semel.core.outcomes import Outcome, Refused, Released, Succeeded, Unprovable, classify_answer
from semel.errors import PolicyError
from semel.http.graphql import graphql_success
from semel.http.routing import Operation
from semel.policy import Policy
from tests.web.conftest import MakeWeb
from tests.web.driving import Reply

DONE = b'{"data": {"pay": 1}}'
HALF = b'{"data": null, "errors": [{"message": "timed out"}]}'
NOTHING = b'{"errors": [{"message": "Cannot query field"}]}'


def make_answer(body: bytes, *headers: tuple[bytes, bytes]) -> Answer:
    return Answer(200, headers, body)


@pytest.mark.parametrize(
    ("body", "meaning"),
    [
        (DONE, True),
        (b'{"data": {"pay": 1}, "errors": []}', True),
        (b'{"data": {"pay": 1}, "extensions": {}}', True),
        (HALF, False),
        (b'{"data": {"pay": null, "mail": 1}, "errors": [{}]}', False),
        (NOTHING, "nothing"),
        (b"[" + DONE + b"," + DONE + b"]", True),
        (b"[" + DONE + b"," + HALF + b"]", False),
        (b"[" + DONE + b"," + NOTHING + b"]", False),
        (b"[" + NOTHING + b"," + NOTHING + b"]", "nothing"),
    ],
)
def test_a_graphql_answer_means_what_its_body_says(body: bytes, meaning: object) -> None:
    assert graphql_success(make_answer(body)) == meaning
    assert graphql_success(make_answer(gzip.compress(body), (b"Content-Encoding", b"gzip"))) == meaning


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b"[]", b'"data"', b'{"errors": []}', b"[1]"])
def test_an_answer_that_is_not_graphql_proves_nothing(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        graphql_success(make_answer(body))
    said = classify_answer(make_answer(body), Policy(success=graphql_success), begun=True)
    assert isinstance(said, Unprovable)


def test_an_unreadable_coding_proves_nothing() -> None:
    with pytest.raises(ValueError, match="Content-Encoding"):
        graphql_success(make_answer(DONE, (b"content-encoding", b"br")))


ANSWER = make_answer(b"")
EVERY: list[tuple[object, dict[str, Any], bool, Outcome]] = [
    (True, {}, True, Succeeded(ANSWER)),
    ("refused", {}, True, Refused(ANSWER)),
    ("nothing", {}, True, Released("success-nothing", proven=True)),
    ("nothing", {"effects": "atomic"}, True, Released("success-nothing", proven=True)),
    (False, {}, True, Unprovable("no-success")),
    (False, {"on_error": "replay"}, True, Refused(ANSWER)),
    (False, {"marks_effects": True}, False, Released("no-success", proven=True)),
    (False, {"effects": "idempotent"}, True, Released("no-success", proven=False)),
    (False, {"effects": "atomic"}, True, Released("no-success", proven=True)),
    (None, {}, True, Unprovable("no-success")),
    (1, {}, True, Unprovable("no-success")),  # not True itself: not declared as done
]


@pytest.mark.parametrize(("said", "options", "begun", "outcome"), EVERY)
def test_each_return_value_of_success_has_its_outcome(
    said: object, options: dict[str, Any], begun: bool, outcome: Outcome
) -> None:
    policy = Policy(success=lambda answer: said, **options)
    assert classify_answer(ANSWER, policy, begun=begun) == outcome


def test_a_function_that_raises_proves_nothing() -> None:
    def breaks(answer: Answer) -> bool:
        raise KeyError("data")

    assert classify_answer(ANSWER, Policy(success=breaks), begun=True) == Unprovable("success:KeyError")


def test_a_success_function_does_not_judge_error_statuses() -> None:
    policy = Policy(success=lambda answer: True)
    assert classify_answer(Answer(404, (), b""), policy, begun=True) == Refused(Answer(404, (), b""))
    assert classify_answer(Answer(500, (), b""), policy, begun=True) == Unprovable("http-500")


@pytest.mark.parametrize("given", [graphql_success(make_answer(DONE)), "graphql", dict, lambda: True])
def test_an_invalid_function_of_an_answer_is_refused(given: Any) -> None:
    with pytest.raises(PolicyError, match="success must be a plain function"):
        Policy(success=given)


async def _return_true(answer: Answer) -> bool:
    return True


def test_a_coroutine_function_is_refused() -> None:
    with pytest.raises(PolicyError, match="success must be a plain function"):
        Policy(success=_return_true)


# --- through both middlewares ----------------------------------------------------------------------


def operations(**options: object) -> dict[str, object]:
    return {"operations": [Operation("/payments", Policy.of(success=graphql_success, **options))]}


def test_errors_in_a_200_are_unknown_and_never_replayed(make_web: MakeWeb) -> None:
    web = make_web(lambda seen: Reply(chunks=[HALF]), **operations())
    assert (web.call().status, web.call().code) == (201, "IDEMPOTENCY_OUTCOME_UNKNOWN")
    [record] = web.records()
    assert (State(record.state), record.body) == (State.UNKNOWN, None)


def test_a_document_that_never_ran_frees_the_key(make_web: MakeWeb) -> None:
    bodies = [NOTHING, DONE]
    web = make_web(lambda seen: Reply(chunks=[bodies.pop(0)]), **operations())
    first, second, third = web.call(), web.call(), web.call()
    assert [answer.body for answer in (first, second, third)] == [NOTHING, DONE, DONE]
    assert third.header("idempotency-replayed") == "true"


def test_an_answer_too_long_to_be_read_proves_nothing(make_web: MakeWeb) -> None:
    web = make_web(lambda seen: Reply(chunks=[DONE]), **operations(answer_bytes_max=10))
    assert web.call().body == DONE
    assert web.call().code == "IDEMPOTENCY_OUTCOME_UNKNOWN"


def test_a_graphql_answer_that_decompresses_beyond_the_limit_is_not_read() -> None:
    import gzip

    body = gzip.compress(b'{"data": {}}' + b" " * (17 * 1024 * 1024), compresslevel=1)
    with pytest.raises(ValueError, match="after decompression"):
        graphql_success(Answer(200, ((b"content-encoding", b"gzip"),), body))
