"""What every end of a handler means, for every status and every declaration."""

from __future__ import annotations

import asyncio

import pytest

from semel.core.model import Answer
from semel.core.outcomes import (
    Outcome,
    Refused,
    Released,
    StatusIn,
    Succeeded,
    Unprovable,
    classify_answer,
    classify_exception,
    classify_unread,
)
from semel.errors import NothingHappened
from semel.policy import Policy

EXTERNAL, IDEMPOTENT, ATOMIC = Policy(), Policy(effects="idempotent"), Policy(effects="atomic")
FIVE = (401, 403, 408, 425, 429)


def of(status: int | None, policy: Policy, *, begun: bool = True) -> Outcome:
    return classify_answer(Answer(status, (), b""), policy, begun=begun)


@pytest.mark.parametrize("policy", [EXTERNAL, IDEMPOTENT, ATOMIC], ids=["external", "idempotent", "atomic"])
@pytest.mark.parametrize("begun", [True, False])
def test_every_status_is_classified_as_designed(policy: Policy, begun: bool) -> None:
    for status in range(100, 600):
        outcome = of(status, policy, begun=begun)
        if status in FIVE:
            wanted: Outcome = Released(f"http-{status}", proven=policy is not IDEMPOTENT)
        elif 200 <= status < 400 or status < 200:
            wanted = Succeeded(Answer(status, (), b""))
        elif status < 500:
            wanted = Refused(Answer(status, (), b""))
        elif not begun:
            wanted = Released(f"http-{status}", proven=True)
        elif policy is EXTERNAL:
            wanted = Unprovable(f"http-{status}")
        else:
            wanted = Released(f"http-{status}", proven=policy is ATOMIC)
        assert outcome == wanted, status


def test_an_answer_without_a_status_is_a_success() -> None:
    assert of(None, EXTERNAL) == Succeeded(Answer(None, (), b""))


def test_only_2xx_is_kept_if_the_policy_declares_it() -> None:
    narrow = Policy(replay="2xx")
    assert isinstance(of(204, narrow), Succeeded)
    assert isinstance(of(303, narrow), Succeeded)
    assert of(422, narrow) == Released("http-422", proven=True)
    assert of(500, narrow) == Unprovable("http-500")
    assert of(422, Policy(replay="2xx", effects="idempotent")) == Released("http-422", proven=False)


@pytest.mark.parametrize("status", [100, 199, 200, 201, 299, 300, 301, 399])
def test_replay_2xx_stores_2xx_and_3xx(status: int) -> None:
    """The edges of the classes: a 3xx is not a refusal, and its answer is what the client needs."""
    assert of(status, Policy(replay="2xx")) == Succeeded(Answer(status, (), b""))
    assert of(status, EXTERNAL, begun=False) == Succeeded(Answer(status, (), b""))


@pytest.mark.parametrize("status", [400, 401, 408, 429, 499])
def test_a_refusal_that_is_not_stored_frees_the_key(status: int) -> None:
    narrow = Policy(replay="2xx", marks_effects=True)
    for begun in (True, False):
        assert of(status, narrow, begun=begun) == Released(f"http-{status}", proven=True)


def test_not_run_changes_the_statuses_that_free_the_key() -> None:
    fewer = Policy(not_run=frozenset({429, 503}))
    assert of(408, fewer) == Unprovable("http-408")
    assert of(408, Policy(not_run=frozenset(), effects="idempotent")) == Released("http-408", proven=False)
    assert of(503, fewer) == Released("http-503", proven=True)
    assert of(404, fewer) == Refused(Answer(404, (), b""))
    assert of(408, Policy(not_run=frozenset(), replay="2xx")) == Unprovable("http-408")


def test_a_success_function_of_statuses_judges_an_answer_that_is_not_stored() -> None:
    answers = {status: Answer(status, (), b"") for status in (201, 202, 404, 500)}
    by_status, by_body = Policy(success=StatusIn([201])), Policy(success=lambda answer: True)
    found = {status: type(classify_unread(each, by_status, begun=True)) for status, each in answers.items()}
    assert found == {201: Succeeded, 202: Unprovable, 404: Refused, 500: Unprovable}
    assert classify_unread(answers[201], by_body, begun=True) == Unprovable("success-unread")


def test_a_declared_5xx_is_definite() -> None:
    policy = Policy(definite_5xx=frozenset({501}))
    assert isinstance(of(501, policy), Refused)
    assert isinstance(of(502, policy), Unprovable)


def test_an_error_is_the_answer_if_the_policy_declares_it() -> None:
    policy = Policy(on_error="replay")
    answer = Answer(500, (), b"oops")
    assert classify_answer(answer, policy, begun=True) == Refused(answer)
    assert classify_exception(ValueError(), policy, begun=True, answer=answer) == Refused(answer)
    assert classify_exception(ValueError(), policy, begun=True) == Unprovable("error:ValueError")  # none was made


class Declined(Exception):
    """The provider's clear no."""


class DeclinedHard(Declined):
    """A kind of it."""


@pytest.mark.parametrize("error", [NothingHappened("no"), Declined(), DeclinedHard()], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("effects", ["external", "idempotent", "atomic"])
def test_a_proof_that_nothing_happened_releases_the_key(error: Exception, effects: str) -> None:
    policy = Policy.of(effects=effects, nothing_happened=(Declined,))
    assert classify_exception(error, policy, begun=True) == Released(type(error).__name__, proven=True)


@pytest.mark.parametrize("error", [KeyError("x"), TimeoutError(), asyncio.CancelledError(), SystemExit(1)])
def test_any_other_exception_settles_by_effects(error: BaseException) -> None:
    name = f"error:{type(error).__name__}"
    assert classify_exception(error, EXTERNAL, begun=True) == Unprovable(name)
    assert classify_exception(error, IDEMPOTENT, begun=True) == Released(name, proven=False)
    assert classify_exception(error, ATOMIC, begun=True) == Released(name, proven=True)


def test_an_exception_before_the_marked_effect_frees_the_key() -> None:
    policy = Policy(marks_effects=True)
    assert classify_exception(KeyError("x"), policy, begun=False) == Released("KeyError", proven=True)
    assert of(500, policy, begun=False) == Released("http-500", proven=True)
    assert isinstance(of(500, policy, begun=True), Unprovable)


def test_no_reason_contains_an_exceptions_message() -> None:
    outcome = classify_exception(ValueError("card 4111"), EXTERNAL, begun=True)
    assert "4111" not in repr(outcome)
