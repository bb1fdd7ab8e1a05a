"""A stricter limit does not apply to commands accepted before: a retry finds the record of its command."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from semel.http.caller import from_state
from semel.http.exchange import RETRY_BYTES_MAX
from semel.http.fingerprint.fingerprinter import Recipe
from semel.http.routing import Operation
from semel.keys import KeyFormat
from semel.policy import Policy
from semel.testing.clock import SettableClock
from tests.functions.stage import Mode, set_stage
from tests.web.conftest import MakeWeb
from tests.web.driving import Reply

BODY = json.dumps({"amount": 5, "note": "x" * 90, "nested": [[[[1]]]]}).encode()
DEEP = Recipe(json_depth_max=2)
STRICTER: dict[str, Callable[[Policy], Policy]] = {
    "key": lambda policy: replace(policy, key_format=KeyFormat(uuid=True)),
    "body": lambda policy: replace(policy, body_bytes_max=50),
    "depth": lambda policy: replace(policy, fingerprint=DEEP, fingerprints_known=(policy.recipe,)),
    "all": lambda policy: replace(
        policy,
        key_format=KeyFormat(length_min=30),
        body_bytes_max=50,
        fingerprint=DEEP,
        fingerprints_known=(policy.recipe,),
    ),
}
POLICIES = {
    "external": Policy(),
    "idempotent": Policy(effects="idempotent"),
    "replayed errors": Policy(on_error="replay"),
}
CODES = {"key": (400, "INVALID_IDEMPOTENCY_KEY"), "body": (413, "IDEMPOTENCY_REQUEST_TOO_LARGE")}


def redeclare(web: Any, policy: Policy) -> None:
    """The same application and store, deployed with another policy."""
    web.middleware = type(web.middleware)(
        web.app, web.engine, caller=from_state("user"), operations=[Operation("/payments", policy)]
    )


@pytest.fixture(params=STRICTER)
def limit(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("pieces", [[BODY], [BODY[:60], BODY[60:]]], ids=["whole", "in pieces"])
def test_a_finished_command_is_replayed(make_web: MakeWeb, limit: str, pieces: list[bytes]) -> None:
    web = make_web(policy=POLICIES["external"])
    first = web.call(key="order-1", body=pieces)
    redeclare(web, STRICTER[limit](POLICIES["external"]))
    again = web.call(key="order-1", body=pieces)
    assert (first.status, again.status, again.body, again.replayed) == (201, 201, first.body, True)
    assert len(web.seen) == 1


def test_another_request_under_the_key_is_distinguished(make_web: MakeWeb, limit: str) -> None:
    web = make_web(policy=POLICIES["external"])
    web.call(key="order-1", body=BODY)
    redeclare(web, STRICTER[limit](POLICIES["external"]))
    other = web.call(key="order-1", body=BODY.replace(b"5", b"6"))
    assert (other.status, other.code) == (422, "IDEMPOTENCY_KEY_REUSED_WITH_DIFFERENT_REQUEST")
    assert len(web.seen) == 1


def test_an_unknown_outcome_is_reported(make_web: MakeWeb, limit: str) -> None:
    web = make_web(lambda seen: Reply(status=500), policy=POLICIES["external"])
    web.call(key="order-1", body=BODY)
    redeclare(web, STRICTER[limit](POLICIES["external"]))
    assert web.call(key="order-1", body=BODY).code == "IDEMPOTENCY_OUTCOME_UNKNOWN"
    assert len(web.seen) == 1


def test_a_new_command_is_refused_and_nothing_is_stored(make_web: MakeWeb, limit: str) -> None:
    web = make_web(policy=STRICTER[limit](POLICIES["external"]))
    got = web.call(key="order-1", body=BODY)
    assert (got.status, got.code) == CODES.get(limit, CODES["body"])
    assert web.seen == []
    assert web.records() == []


@pytest.mark.parametrize("limit", ["key", "body"])
def test_a_command_that_may_run_again_never_suggests_a_new_key(make_web: MakeWeb, limit: str) -> None:
    """Its first attempt may have had its effect, under derived keys that only the same key gives again."""
    replies = itertools.chain([Reply(status=503)], itertools.repeat(Reply()))
    web = make_web(lambda seen: next(replies), policy=POLICIES["idempotent"])
    web.call(key="order-1", body=BODY)
    redeclare(web, STRICTER[limit](POLICIES["idempotent"]))
    again = web.call(key="order-1", body=BODY)
    if limit == "key":
        assert (again.status, len(web.seen)) == (201, 2)
    else:
        assert (again.status, again.problem["keyAction"], len(web.seen)) == (413, "keep", 1)


def test_a_body_beyond_what_is_read_for_a_retry_is_refused_at_once(make_web: MakeWeb) -> None:
    web = make_web(policy=replace(POLICIES["external"], body_bytes_max=50))
    piece = b"x" * (1024 * 1024)
    got = web.call(key="order-1", body=[piece] * (RETRY_BYTES_MAX // len(piece) + 1))
    assert (got.status, got.problem["keyAction"]) == (413, "keep")


def test_a_key_from_the_path_keeps_its_record(make_web: MakeWeb) -> None:
    def declare(**more: Any) -> Operation:
        return Operation("/orders/{id}", Policy(key_from="path:id", **more), name="order")

    web = make_web(operations=[declare()])
    assert web.call(key=None, path="/orders/1").status == 201
    stricter = declare(key_format=KeyFormat(length_min=8))
    made: Any = web
    made.middleware = type(made.middleware)(made.app, web.engine, caller=from_state("user"), operations=[stricter])
    assert web.call(key=None, path="/orders/1").replayed
    assert web.call(key=None, path="/orders/2").code == "INVALID_IDEMPOTENCY_KEY"


# --- a UUIDv7's age ----------------------------------------------------------------------------

OLD = "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"  # of 2022: RFC 9562, appendix A.6
AGED = KeyFormat(uuid7_max_age=86_400)


def test_a_key_that_is_too_old_starts_no_command(make_web: MakeWeb) -> None:
    web = make_web(policy=Policy(key_format=AGED))
    got = web.call(key=OLD, body=BODY)
    assert (got.status, got.code, got.problem["keyAction"]) == (400, "INVALID_IDEMPOTENCY_KEY", "query")
    assert "older than 86400 seconds" in got.problem["detail"]
    assert (web.seen, web.records()) == ([], [])
    other = web.call(key="order-1", body=BODY)
    assert (other.status, other.problem["keyAction"], "UUIDv7" in other.problem["detail"]) == (400, "new", True)


def test_a_key_that_is_too_old_and_on_record_gets_its_answer(make_web: MakeWeb) -> None:
    web = make_web(policy=Policy())
    first = web.call(key=OLD, body=BODY)
    redeclare(web, Policy(key_format=AGED))
    again = web.call(key=OLD, body=BODY)
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    assert web.call(key=OLD, body=BODY.replace(b"5", b"6")).status == 422
    assert len(web.seen) == 1


def test_a_command_without_effect_runs_again_under_its_old_key(make_web: MakeWeb) -> None:
    replies = itertools.chain([Reply(status=503)], itertools.repeat(Reply()))
    web = make_web(lambda seen: next(replies), policy=POLICIES["idempotent"])
    web.call(key=OLD, body=BODY)
    redeclare(web, replace(POLICIES["idempotent"], key_format=AGED))
    assert (web.call(key=OLD, body=BODY).status, len(web.seen)) == (201, 2)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_function_refuses_a_key_that_is_too_old(mode: Mode, tmp_path: Any) -> None:
    ran = []

    def pay(note: str) -> str:
        ran.append(note)
        return "paid"

    with set_stage(mode, "memory", tmp_path) as stage:
        before = stage.command(pay, policy=Policy())
        after = stage.command(pay, policy=Policy(key_format=AGED))
        assert after.with_key(OLD).attempt("x").__name__ == "KeyTooOld"
        assert ran == []
        assert before.with_key(OLD)("x") == "paid"
        assert after.with_key(OLD)("x") == "paid"
        assert ran == ["x"]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_purged_command_does_not_run_again_under_an_old_key(mode: Mode, tmp_path: Any) -> None:
    """Also where an expired key is a new one by choice: an old key is not."""
    ran = []

    def pay(note: str) -> str:
        ran.append(note)
        return "paid"

    clock = SettableClock()
    forgets = Policy(after_expiry="new")
    with set_stage(mode, "memory", tmp_path, clock) as stage:
        before = stage.command(pay, policy=forgets)
        after = stage.command(pay, policy=replace(forgets, key_format=AGED))
        assert before.with_key(OLD)("x") == "paid"
        clock.advance(seconds=31 * 86_400)
        assert after.with_key(OLD).attempt("x").__name__ == "KeyTooOld"
        assert ran == ["x"]
        assert before.with_key(OLD)("x") == "paid"
        assert ran == ["x", "x"]


# --- functions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    "stricter",
    [
        {"key_format": KeyFormat(uuid=True)},
        {"body_bytes_max": 10},
        {"key_format": KeyFormat(uuid=True), "body_bytes_max": 10},
    ],
)
def test_a_function_replays(mode: Mode, stricter: dict[str, Any], tmp_path: Any) -> None:
    ran = []

    def pay(note: str) -> str:
        ran.append(note)
        return "paid"

    with set_stage(mode, "memory", tmp_path) as stage:
        before = stage.command(pay, policy=Policy())
        after = stage.command(pay, policy=Policy.of(**stricter))
        assert before.with_key("order-1")("x" * 50) == "paid"
        assert after.with_key("order-1")("x" * 50) == "paid"
        assert after.with_key("order-1").attempt("y" * 50).__name__ == "KeyReusedError"
        assert after.with_key("order-2").attempt("x" * 50).__name__ in ("InvalidKey", "RequestTooLarge")
        assert len(ran) == 1
