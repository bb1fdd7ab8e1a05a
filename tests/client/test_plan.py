"""The plan without IO: every class of answer, deadlines, pauses, lifetimes, the status, tokens and the breaker."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from semel.client.answers import Answered, retry_after_seconds, status_link
from semel.client.limits import Breaker, Budget
from semel.client.origins import Origin, Origins
from semel.client.plan import (
    LIFETIME_OVER,
    OUTCOME_UNKNOWN,
    Action,
    AskStatus,
    Done,
    Event,
    Finish,
    InDoubt,
    NoAnswer,
    NotYet,
    Plan,
    Refused,
    Send,
    Wait,
    Waited,
)
from semel.errors import ConfigurationError
from semel.http.problems import CALLER_UNKNOWN, KINDS, NOT_ALLOWED, PROXY_KINDS, UNCOVERED

URL = "https://shop.example/payments"
PROBLEM = {"content-type": "application/problem+json"}
LOST = NoAnswer("the connection was reset")


def problem(status: int, code: str, *, headers: dict[str, str] | None = None, **members: Any) -> Answered:
    body = json.dumps({"status": status, "code": code, **members}).encode()
    return Answered(status, {**PROBLEM, **(headers or {})}, body)


IN_PROGRESS = problem(409, "IDEMPOTENCY_REQUEST_IN_PROGRESS", retryable=True, keyAction="keep", retryAfter=1)
UNKNOWN = problem(409, OUTCOME_UNKNOWN, retryable=False, keyAction="keep", operation="/operations/1")


def status(state: str, *, running: bool = False, headers: dict[str, str] | None = None) -> Answered:
    return Answered(200, headers or {}, json.dumps({"state": state, "running": running}).encode())


class Driven:
    """A plan with a clock that only pauses move, and a script of events."""

    def __init__(self, *events: Event, budget: Budget | None = None, each_takes: float = 0.0, **options: Any) -> None:
        self.plan = Plan(URL, budget or Budget(), **options)
        self.now = 100.0
        self.actions: list[Action] = [self.plan.start(self.now)]
        script = list(events)
        while not isinstance(self.actions[-1], Finish):
            match self.actions[-1]:
                case Wait(seconds=seconds):
                    self.now += seconds
                    event: Event = Waited()
                case Send(seconds=most) | AskStatus(seconds=most):
                    self.now += min(each_takes, most)
                    event = script.pop(0) if len(script) > 1 else script[0]  # the last one continues for ever
            self.actions.append(self.plan.after(event, self.now))

    @property
    def outcome(self) -> Any:
        assert isinstance(self.actions[-1], Finish)
        return self.actions[-1].outcome

    def count(self, kind: type) -> int:
        return sum(isinstance(action, kind) for action in self.actions)

    @property
    def pauses(self) -> list[float]:
        return [action.seconds for action in self.actions if isinstance(action, Wait)]


# --- classes of answers ---


@pytest.mark.parametrize("code", [200, 201, 202, 204, 303])
def test_a_success_is_done(code: int) -> None:
    driven = Driven(Answered(code))
    assert driven.outcome == Done(Answered(code))
    assert driven.count(Send) == 1


@pytest.mark.parametrize("code", [408, 425, 429, 502, 503, 504])
def test_these_statuses_are_retried_with_the_same_request(code: int) -> None:
    driven = Driven(Answered(code), Answered(201))
    assert driven.outcome == Done(Answered(201))
    assert driven.count(Send) == 2


@pytest.mark.parametrize("code", [400, 402, 404, 405, 409, 410, 412, 413, 415, 422, 451])
def test_other_refusals_are_never_retried_and_ask_for_a_correction(code: int) -> None:
    driven = Driven(Answered(code))
    assert driven.outcome == Refused(f"HTTP_{code}", "new", Answered(code))
    assert driven.count(Send) == 1


@pytest.mark.parametrize("code", [401, 403, 407])
def test_a_refusal_of_the_caller_keeps_the_key(code: int) -> None:
    assert Driven(Answered(code)).outcome.key_action == "keep"


@pytest.mark.parametrize("code", [500, 501, 505, 507])
def test_another_5xx_is_in_doubt_and_not_repeated(code: int) -> None:
    driven = Driven(Answered(code))
    assert isinstance(driven.outcome, InDoubt)
    assert driven.count(Send) == 1


@pytest.mark.parametrize("code", [300, 301, 307, 308])
def test_a_redirect_is_refused(code: int) -> None:
    driven = Driven(Answered(code, {"location": "https://elsewhere.example/"}))
    assert (driven.outcome.code, driven.count(Send)) == ("REDIRECT", 1)
    assert isinstance(driven.outcome, Refused)


def test_a_302_may_follow_a_success_and_is_in_doubt() -> None:
    assert isinstance(Driven(Answered(302)).outcome, InDoubt)


@pytest.mark.parametrize("code", [300, 301, 307, 308])
def test_a_redirect_after_a_lost_attempt_proves_nothing(code: int) -> None:
    """The lost one may have been served before the redirect was there: a new key would do it again."""
    assert isinstance(Driven(LOST, Answered(code)).outcome, InDoubt)


@pytest.mark.parametrize("kind", [*KINDS, *PROXY_KINDS], ids=lambda kind: kind.code)
def test_every_problem_document_of_the_server_is_obeyed(kind: Any) -> None:
    answer = problem(kind.status, kind.code, retryable=kind.retryable, keyAction=kind.key_action)
    driven = Driven(answer)
    if kind.retryable:
        assert isinstance(driven.outcome, NotYet)
        assert driven.count(Send) == 3
        return
    assert driven.count(Send) == 1
    if kind.key_action == "query" or kind.status >= 500 or kind.code == OUTCOME_UNKNOWN:
        assert isinstance(driven.outcome, InDoubt)
        assert driven.outcome.code == kind.code
    else:
        assert driven.outcome == Refused(kind.code, kind.key_action, answer)


def test_a_problem_that_forbids_a_retry_outranks_its_status() -> None:
    driven = Driven(problem(503, "CLOSED_FOR_GOOD", retryable=False))
    assert isinstance(driven.outcome, InDoubt)
    assert driven.count(Send) == 1


def test_a_replayed_answer_is_final_with_any_content() -> None:
    for code in (400, 409, 429, 500, 503, 504):
        driven = Driven(LOST, Answered(code, {"idempotency-replayed": "true", "idempotency-key-lifetime": "86400"}))
        assert isinstance(driven.outcome, Refused), code
        assert driven.count(Send) == 2
    assert Driven(LOST, Answered(201, {"idempotency-replayed": "true"})).outcome.replayed


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_a_redirect_of_the_operation_itself_may_follow_a_success(code: int) -> None:
    """A server that says how long it keeps the key has taken the command, and this is its answer."""
    assert isinstance(Driven(Answered(code, {"idempotency-key-lifetime": "86400"})).outcome, InDoubt)


@pytest.mark.parametrize("code", [300, 301, 302, 304, 307, 308])
def test_a_stored_redirect_may_follow_a_success_and_is_no_refusal(code: int) -> None:
    """Flask, Django and Rails answer a form with 302 when it is done, and a server stores that for each retry."""
    stored = Answered(code, {"idempotency-replayed": "true", "idempotency-key-lifetime": "86400"})
    for events in ((LOST, stored), (stored,), (Answered(500, LINKED), status("SUCCEEDED"), stored)):
        outcome = Driven(*events).outcome
        assert isinstance(outcome, InDoubt), events
        assert outcome.code == "REDIRECT"


@pytest.mark.parametrize("mark", ["idempotency-replayed", "idempotent-replayed"])
def test_a_stored_failure_does_not_prove_that_nothing_happened(mark: str) -> None:
    driven = Driven(Answered(500, {mark: "true"}))
    assert isinstance(driven.outcome, InDoubt)
    assert driven.count(Send) == 1


def test_a_stored_unknown_outcome_is_not_a_refusal() -> None:
    headers = {"idempotency-replayed": "true", "idempotency-key-lifetime": "86400"}
    assert isinstance(Driven(problem(409, OUTCOME_UNKNOWN, headers=headers, retryable=False)).outcome, InDoubt)


RUNS = b'{"operationId": "1", "state": "PROCESSING", "operation": "/operations/1"}'
LINKED = {"content-type": "application/json", "link": '</operations/1>; rel="status"', "retry-after": "1"}


@pytest.mark.parametrize(
    "accepted", [Answered(202, LINKED, RUNS), Answered(202, LINKED | {"preference-applied": "respond-async"}, b"{}")]
)
def test_an_accepted_command_is_not_done(accepted: Answered) -> None:
    answer = Answered(201, {"idempotency-replayed": "true"})
    driven = Driven(LOST, accepted, status("PROCESSING", running=True), status("SUCCEEDED"), answer)
    assert driven.outcome == Done(answer, replayed=True)
    assert driven.count(AskStatus) == 2
    driven = Driven(accepted, status("PROCESSING", running=True))
    assert isinstance(driven.outcome, NotYet)
    assert driven.outcome.may_have_happened


# --- what a lost attempt makes uncertain ---


@pytest.mark.parametrize("code", [401, 403, 404, 409, 410])
def test_a_refusal_after_a_lost_attempt_proves_nothing(code: int) -> None:
    assert isinstance(Driven(LOST, Answered(code)).outcome, InDoubt)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (CALLER_UNKNOWN.status, CALLER_UNKNOWN.code),
        (NOT_ALLOWED.status, NOT_ALLOWED.code),
        (UNCOVERED.status, UNCOVERED.code),
        (403, "IMPORT_NOT_ALLOWED"),
    ],
)
def test_a_refusal_before_the_record_is_read_proves_nothing_about_a_lost_attempt(status: int, code: str) -> None:
    refusal = problem(status, code, retryable=False, keyAction="keep")
    assert isinstance(Driven(LOST, refusal).outcome, InDoubt)
    assert isinstance(Driven(refusal).outcome, Refused)


@pytest.mark.parametrize("code", [400, 413, 415, 422])
def test_a_refusal_of_the_request_itself_is_final_after_a_lost_attempt(code: int) -> None:
    assert isinstance(Driven(LOST, Answered(code)).outcome, Refused)


def test_a_refusal_by_the_operation_itself_is_final_after_a_lost_attempt() -> None:
    answer = Answered(409, {"idempotency-key-lifetime": "86400"})
    assert isinstance(Driven(LOST, answer).outcome, Refused)


def test_an_attempt_that_was_never_sent_proves_that_nothing_happened() -> None:
    unreachable = NoAnswer("the name does not resolve", sent=False)
    outcome = Driven(unreachable).outcome
    assert isinstance(outcome, NotYet)
    assert not outcome.may_have_happened
    assert isinstance(Driven(unreachable, Answered(409)).outcome, Refused)


@pytest.mark.parametrize(
    ("event", "happened"),
    [
        (LOST, True),
        (Answered(504), True),
        (Answered(502), True),
        (IN_PROGRESS, True),
        (Answered(429), False),
        (Answered(425), False),
        (problem(503, "IDEMPOTENCY_STORE_UNAVAILABLE", retryable=True), False),
        (problem(503, "IDEMPOTENCY_STORE_UNAVAILABLE", retryable=True, mayHaveHappened=True), True),
    ],
    ids=["lost", "504", "502", "in progress", "429", "425", "store unavailable", "commit not confirmed"],
)
def test_not_yet_states_whether_it_may_have_happened(event: Event, happened: bool) -> None:
    outcome = Driven(event).outcome
    assert isinstance(outcome, NotYet)
    assert outcome.may_have_happened is happened


# --- budget ---


def test_attempts_are_bounded() -> None:
    driven = Driven(LOST, budget=Budget(attempts=4))
    assert driven.count(Send) == 4
    assert [action.attempt for action in driven.actions if isinstance(action, Send)] == [1, 2, 3, 4]


def test_the_deadline_bounds_attempts_and_pauses_together() -> None:
    driven = Driven(LOST, budget=Budget(attempts=100, seconds=5), each_takes=1.0)
    assert isinstance(driven.outcome, NotYet)
    assert driven.now <= 105.001


def test_every_attempt_gets_a_part_of_the_remaining_time() -> None:
    sends = [a for a in Driven(LOST, budget=Budget(seconds=30), each_takes=10.0).actions if isinstance(a, Send)]
    assert sends[0].seconds == pytest.approx(10)
    assert sends[-1].seconds == pytest.approx((30 - 10 - 0.2) / 2 - 0.4)


def test_prefer_wait_is_shorter_than_the_attempt() -> None:
    for seconds, wait in ((30.0, 29), (3.0, 2), (1.2, 0), (0.3, 0)):
        [first, *_] = Driven(Answered(200), budget=Budget(attempts=1, seconds=seconds)).actions
        assert isinstance(first, Send)
        assert first.wait == wait


def test_pauses_double_up_to_a_limit_with_full_jitter() -> None:
    budget = Budget(attempts=7, seconds=1000, pause_seconds=1, pause_seconds_max=8)
    assert Driven(LOST, budget=budget).pauses == [1, 2, 4, 8, 8, 8]
    assert Driven(LOST, budget=budget, jitter=lambda: 0.0).pauses == [0] * 6
    drawn = random.Random(7)
    pauses = Driven(LOST, budget=budget, jitter=drawn.random).pauses
    assert all(0 <= pause <= most for pause, most in zip(pauses, [1, 2, 4, 8, 8, 8], strict=True))
    assert len(set(pauses)) == 6


def test_retry_after_is_the_least_pause() -> None:
    driven = Driven(Answered(503, {"retry-after": "7"}), Answered(201), jitter=lambda: 0.0)
    assert driven.pauses == [7.0]
    dated = Answered(
        503, {"retry-after": "Sun, 06 Nov 1994 08:49:12 GMT", "date": "Sun, 06 Nov 1994 08:49:07 GMT"}, at=9e8
    )
    assert Driven(dated, Answered(201), jitter=lambda: 0.0).pauses == [5.0]


def test_a_retry_after_beyond_the_deadline_ends_at_once_and_is_reported() -> None:
    driven = Driven(Answered(503, {"retry-after": "3600"}), jitter=lambda: 0.0)
    assert driven.pauses == []
    assert driven.outcome.retry_after == 3600


@pytest.mark.parametrize(
    ("text", "date", "at", "seconds"),
    [
        ("0", "", 0.0, 0.0),
        (" 12 ", "", 0.0, 12.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", "", 784111767.0, 10.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", "", 9e9, 0.0),
        ("-1", "", 0.0, None),
        ("1.5", "", 0.0, None),
        ("\u0661", "", 0.0, None),
        ("soon", "", 0.0, None),
        ("9" * 400, "", 0.0, None),
        ("", "", 0.0, None),
    ],
)
def test_retry_after_is_read_in_both_forms(text: str, date: str, at: float, seconds: float | None) -> None:
    assert retry_after_seconds(text, date, at) == seconds


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"attempts": 0}, "attempts"),
        ({"attempts": True}, "attempts"),
        ({"seconds": 0}, "seconds"),
        ({"seconds": float("nan")}, "seconds"),
        ({"attempt_seconds": -1}, "attempt_seconds"),
        ({"pause_seconds": -1}, "pause_seconds"),
        ({"pause_seconds_max": 0.1}, "pause_seconds_max"),
        ({"retries_at_once": "many"}, "retries_at_once"),
        ({"retries_per_second": -1}, "retries_per_second"),
    ],
)
def test_a_wrong_budget_names_its_option(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Budget(**options)


@pytest.mark.parametrize("options", [{"failures": 0}, {"seconds": 0}])
def test_a_wrong_breaker_names_its_option(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Breaker(**options)


# --- the key's lifetime ---


def test_no_attempt_is_made_after_the_keys_lifetime() -> None:
    driven = Driven(Answered(201), sends_before=1, may_have_happened=True, age_seconds=86_400)
    assert driven.count(Send) == 0
    assert driven.outcome.code == LIFETIME_OVER
    assert "business reference" in driven.outcome.detail


def test_an_attempt_within_the_lifetime_is_made() -> None:
    assert isinstance(Driven(Answered(201), sends_before=1, age_seconds=86_399).outcome, Done)


def test_the_advertised_lifetime_ends_the_attempts() -> None:
    short = Answered(503, {"idempotency-key-lifetime": "5", "retry-after": "6"})
    driven = Driven(short, jitter=lambda: 0.0)
    assert driven.outcome.code == LIFETIME_OVER
    assert driven.count(Send) == 1
    assert driven.plan.lifetime_seconds == 5


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("86400", 86_400),
        ("PT24H", 86_400),
        ('"PT24H"', 86_400),
        ("P1D;v=1", 86_400),
        ("P1DT1H1M1.5S", 90_061.5),
        ("P1Y1M", 393 * 86_400),
        ("0", 0),
        ("PT0S", 0),
        ("", None),
        ("P", None),
        ("PT", None),
        ("P1DT", None),
        ("-5", None),
        ("1.5", None),
        ("a day", None),
        ("P" + "9" * 100 + "D", None),
        ("٣", None),
    ],
)
def test_a_lifetime_is_seconds_or_a_period(text: str, seconds: float | None) -> None:
    assert Answered(201, {"idempotency-key-lifetime": text}).lifetime_seconds == seconds


def test_an_unreadable_lifetime_leaves_the_default_one() -> None:
    driven = Driven(Answered(503, {"idempotency-key-lifetime": "a day"}), Answered(201))
    assert driven.plan.lifetime_seconds == 86_400


def test_a_refusal_links_to_its_explanation() -> None:
    kind = b'{"type": "https://docs.example/x"}'
    problem = {"content-type": "application/problem+json"}
    link = {"link": '</operations/1>; rel="status", </operations/problems#x>; rel="describedby"'}
    assert Answered(409, problem, kind).documentation == "https://docs.example/x"
    assert Answered(409, problem | link, kind).documentation == "/operations/problems#x"
    assert Answered(409, problem, b'{"type": "urn:x"}').documentation is None
    assert Answered(201, link).documentation is None


def test_an_attempt_ends_with_the_lifetime() -> None:
    [first, *_] = Driven(
        Answered(201), sends_before=1, age_seconds=86_398, budget=Budget(attempts=1, seconds=20)
    ).actions
    assert isinstance(first, Send)
    assert first.seconds == pytest.approx(2)


# --- the status of an operation in doubt ---


def test_an_unknown_command_is_queried_and_not_sent_again_until_it_is_settled() -> None:
    driven = Driven(UNKNOWN, status("UNKNOWN"), status("UNKNOWN"), status("SUCCEEDED"), Answered(201))
    kinds = [type(action) for action in driven.actions if not isinstance(action, Wait)]
    assert kinds == [Send, AskStatus, AskStatus, AskStatus, Send, Finish]
    assert driven.outcome == Done(Answered(201))


def test_an_unknown_command_ends_in_doubt_at_the_deadline_with_the_link() -> None:
    driven = Driven(UNKNOWN, status("UNKNOWN"), budget=Budget(seconds=10, attempts=1))
    assert driven.outcome.operation_url == "https://shop.example/operations/1"
    assert driven.outcome.code == OUTCOME_UNKNOWN
    assert driven.count(Send) == 1
    assert driven.now <= 110


def test_the_answer_is_fetched_although_the_attempts_are_used_up() -> None:
    driven = Driven(UNKNOWN, status("SUCCEEDED"), Answered(201), budget=Budget(attempts=1))
    assert driven.outcome == Done(Answered(201))
    again = Driven(UNKNOWN, status("SUCCEEDED"), LOST, budget=Budget(attempts=1))
    assert again.count(Send) == 2
    assert isinstance(again.outcome, NotYet)


# --- a command that the server has accepted and still works on ---

ACCEPTED = Answered(
    202,
    {"content-type": "application/json", "retry-after": "1", "link": '</operations/1>; rel="status"'},
    b'{"operationId": "1", "state": "PROCESSING", "operation": "/operations/1"}',
)
RUNNING = status("PROCESSING", running=True)
REPLAYED = {"idempotency-replayed": "true"}


def test_an_accepted_command_is_polled_until_its_answer_is_stored() -> None:
    driven = Driven(ACCEPTED, RUNNING, RUNNING, status("SUCCEEDED"), Answered(201, REPLAYED), budget=Budget(attempts=1))
    kinds = [type(action) for action in driven.actions if not isinstance(action, Wait)]
    assert kinds == [Send, AskStatus, AskStatus, AskStatus, Send, Finish]
    assert driven.outcome == Done(Answered(201, REPLAYED), replayed=True)


def test_an_accepted_command_may_still_be_refused() -> None:
    driven = Driven(LOST, ACCEPTED, status("FAILED_REPLAYABLE"), Answered(402, REPLAYED))
    assert driven.outcome == Refused("HTTP_402", "new", Answered(402, REPLAYED))


def test_an_accepted_command_that_outlasts_the_budget_has_no_outcome_yet() -> None:
    driven = Driven(ACCEPTED, RUNNING, budget=Budget(seconds=10, attempts=1))
    assert isinstance(driven.outcome, NotYet)
    assert driven.outcome.may_have_happened
    assert driven.outcome.code == "IDEMPOTENCY_REQUEST_IN_PROGRESS"
    assert driven.plan.operation_url == "https://shop.example/operations/1"
    assert driven.now <= 110


def test_an_accepted_command_whose_outcome_becomes_unknown_is_in_doubt() -> None:
    driven = Driven(ACCEPTED, RUNNING, status("UNKNOWN"), budget=Budget(seconds=10, attempts=1))
    assert isinstance(driven.outcome, InDoubt)
    assert driven.outcome.code == OUTCOME_UNKNOWN


@pytest.mark.parametrize("answer", [Answered(404), Answered(200, {}, b"[]")])
def test_an_accepted_command_without_a_status_has_no_outcome_yet(answer: Answered) -> None:
    assert isinstance(Driven(ACCEPTED, answer).outcome, NotYet)


def test_an_accepted_command_without_a_link_is_sent_again() -> None:
    driven = Driven(Answered(202, {"content-type": "application/json"}, ACCEPTED.body), Answered(201, REPLAYED))
    assert (driven.count(Send), driven.count(AskStatus)) == (2, 0)
    assert driven.outcome == Done(Answered(201, REPLAYED), replayed=True)
    assert isinstance(Driven(Answered(202, {}, ACCEPTED.body)).outcome, NotYet)


@pytest.mark.parametrize(
    "answer",
    [
        Answered(202, {**ACCEPTED.headers, **REPLAYED}, ACCEPTED.body),
        Answered(202, ACCEPTED.headers, b'{"job": 7}'),
        Answered(202, ACCEPTED.headers, b'{"operationId": "1", "state": "SUCCEEDED"}'),
        Answered(202, ACCEPTED.headers, b"[1]"),
        Answered(200, ACCEPTED.headers, ACCEPTED.body),
    ],
)
def test_a_202_of_the_application_itself_is_done(answer: Answered) -> None:
    driven = Driven(answer)
    assert isinstance(driven.outcome, Done)
    assert driven.count(Send) == 1


def test_a_settlement_that_is_contradicted_ends_in_doubt() -> None:
    driven = Driven(UNKNOWN, status("SUCCEEDED"), UNKNOWN)
    assert isinstance(driven.outcome, InDoubt)
    assert driven.count(Send) == 2


def test_a_lapsed_execution_is_sent_again_and_a_running_one_is_waited_for() -> None:
    running = status("PROCESSING", running=True, headers={"retry-after": "1"})
    driven = Driven(UNKNOWN, running, status("PROCESSING"), Answered(201), jitter=lambda: 0.0)
    assert driven.pauses == [0.0, 1.0, 0.0]
    assert driven.outcome == Done(Answered(201))


def test_a_failed_status_query_is_retried() -> None:
    driven = Driven(UNKNOWN, LOST, Answered(503), status("SUCCEEDED"), Answered(201))
    assert driven.count(AskStatus) == 3
    assert driven.outcome == Done(Answered(201))


@pytest.mark.parametrize("answer", [Answered(404), Answered(401), Answered(200, {}, b"[]"), Answered(200, {}, b"{")])
def test_a_status_resource_without_a_state_leaves_the_doubt(answer: Answered) -> None:
    driven = Driven(UNKNOWN, answer)
    assert isinstance(driven.outcome, InDoubt)
    assert driven.outcome.operation_url is not None


def test_a_500_with_a_link_is_queried() -> None:
    failed = Answered(500, {"link": '</operations/7>; rel="status"'})
    stored = {"idempotency-replayed": "true", "idempotency-key-lifetime": "86400"}
    driven = Driven(failed, status("FAILED_REPLAYABLE"), Answered(500, stored))
    assert driven.outcome.code == "HTTP_500"
    assert isinstance(driven.outcome, Refused)


@pytest.mark.parametrize(
    "link",
    [
        *("https://evil.example/operations/1", "http://shop.example/operations/1", "//evil.example/x", "http://["),
        *("/operations/\0", "/operations/\x7f", "/operations/" + "1" * 70_000),  # no HTTP client takes these
    ],
)
def test_a_status_link_to_another_origin_is_never_followed(link: str) -> None:
    driven = Driven(problem(409, OUTCOME_UNKNOWN, retryable=False, operation=link))
    assert driven.count(AskStatus) == 0
    assert isinstance(driven.outcome, InDoubt)
    assert driven.outcome.operation_url is None


@pytest.mark.parametrize(
    ("field", "target"),
    [
        ('</o/1>; rel="status"', "/o/1"),
        ("</o/1>; rel=status", "/o/1"),
        ('</a>; rel="next", </o/1>; rel="related status"', "/o/1"),
        ('</a>; title="<x>; rel=status", </o/1>; rel="status"', "/o/1"),
        ('</a,b>; rel="next"', None),
        ("</a", None),
        ("", None),
    ],
)
def test_the_status_link_is_found_among_others(field: str, target: str | None) -> None:
    assert status_link(field) == target


def test_a_malformed_problem_document_is_ignored() -> None:
    for body in (b"[" * 100_000, b'{"code": 5, "retryable": "yes", "retryAfter": true}', b"\xff", b"null"):
        assert Answered(409, PROBLEM, body).code == "HTTP_409"
        assert isinstance(Driven(Answered(409, PROBLEM, body)).outcome, Refused)


# --- retry budget and breaker ---


def test_the_retry_budget_of_an_origin_ends_retries_and_not_first_attempts() -> None:
    gate = Origin(Budget(retries_at_once=3, retries_per_second=0.5), None)
    budget = Budget(pause_seconds=0)
    sends = [Driven(LOST, budget=budget, gate=gate).count(Send) for _ in range(4)]
    assert sends == [3, 2, 1, 1]  # 3 retries in all
    held = Driven(LOST, budget=budget, gate=gate).outcome
    assert (held.code, held.retry_after) == ("RETRY_BUDGET", 2.0)


def test_the_retry_budget_fills_again_and_no_further_than_its_size() -> None:
    gate = Origin(Budget(retries_at_once=2, retries_per_second=0.5), None)
    taken = [gate.admit(now, retry=True) is None for now in (0, 0, 0, 1, 2, 1000, 1000, 1000)]
    assert taken == [True, True, False, False, True, True, True, False]


def test_a_clock_that_goes_back_fills_no_bucket() -> None:
    gate = Origin(Budget(retries_at_once=1, retries_per_second=1), None)
    assert gate.admit(100, retry=True) is None
    assert gate.admit(50, retry=True) is not None


def test_a_resumed_intent_costs_a_token() -> None:
    gate = Origin(Budget(retries_at_once=0), None)
    assert Driven(Answered(201), gate=gate).count(Send) == 1
    assert Driven(Answered(201), gate=gate, sends_before=1).outcome.code == "RETRY_BUDGET"


def test_the_breaker_opens_half_opens_and_closes() -> None:
    gate = Origin(Budget(), Breaker(failures=2, seconds=10))
    admit: Callable[[float], bool] = lambda now: gate.admit(now, retry=False) is None  # noqa: E731
    gate.note(0, failed=True)
    assert gate.state(0) == "closed"
    gate.note(1, failed=True)
    assert gate.state(1) == "open"
    assert not admit(10.9)
    assert gate.state(11) == "half-open"
    assert admit(11)  # the probe
    assert not admit(11)  # only one
    gate.note(12, failed=True)
    assert not admit(21.9)
    assert admit(22)
    gate.note(22, failed=False)
    assert gate.state(22) == "closed"
    assert admit(22)
    assert admit(22)


def test_a_probe_that_never_reports_does_not_block_for_ever() -> None:
    gate = Origin(Budget(), Breaker(failures=1, seconds=10))
    gate.note(0, failed=True)
    assert gate.admit(10, retry=False) is None
    assert gate.admit(19, retry=False) is not None
    assert gate.admit(20, retry=False) is None


def test_an_open_breaker_sends_nothing_and_states_when_it_closes() -> None:
    gate = Origin(Budget(), Breaker(failures=1, seconds=10))
    gate.note(100, failed=True)
    driven = Driven(Answered(201), gate=gate)
    assert driven.count(Send) == 0
    assert (driven.outcome.code, driven.outcome.retry_after) == ("BREAKER_OPEN", 10)
    assert not driven.outcome.may_have_happened


def test_refusals_do_not_open_the_breaker() -> None:
    gate = Origin(Budget(), Breaker(failures=1))
    for code in (400, 401, 409, 422, 429, 500):
        Driven(Answered(code), gate=gate)
    assert gate.state(100) == "closed"
    Driven(Answered(503), gate=gate, budget=Budget(attempts=1))
    assert gate.state(100) == "open"


def test_origins_do_not_share_budget_and_breaker() -> None:
    origins = Origins(Budget(), Breaker())
    assert origins.of("https://a.example/x") is origins.of("https://A.example:443/y")
    assert origins.of("https://a.example/") is not origins.of("http://a.example/")
    assert origins.of("https://a.example/") is not origins.of("https://a.example:8443/")


# --- everything at once ---


def test_every_random_script_ends_within_its_budget() -> None:
    events: list[Event] = [
        LOST,
        NoAnswer("refused", sent=False),
        *(Answered(code) for code in (200, 302, 401, 404, 408, 409, 422, 425, 429, 500, 502, 503, 504)),
        Answered(503, {"retry-after": "2"}),
        Answered(201, {"idempotency-replayed": "true"}),
        IN_PROGRESS,
        UNKNOWN,
        *(status(state) for state in ("UNKNOWN", "SUCCEEDED", "PROCESSING", "FAILED_REPLAYABLE")),
        status("PROCESSING", running=True),
    ]
    for seed in range(3000):
        chosen = random.Random(seed)
        script = [chosen.choice(events) for _ in range(12)]
        budget = Budget(attempts=chosen.randint(1, 6), seconds=chosen.choice([1, 10, 60]))
        driven = Driven(*script, budget=budget, jitter=chosen.random, each_takes=chosen.choice([0.01, 0.5]))
        assert driven.count(Send) <= budget.attempts + 1, seed
        assert driven.now <= 100.001 + budget.seconds, seed
        for action in driven.actions:
            if isinstance(action, Send | AskStatus):
                assert 0 < action.seconds <= budget.seconds
