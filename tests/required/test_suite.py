"""The required tests as users run them: a class in their test file, or a list without pytest."""

from __future__ import annotations

from typing import Any

import pytest

from semel import AsyncEngine, Engine, Policy
from semel.errors import ConfigurationError
from semel.testing.required import (
    REQUIRED,
    CannotRun,
    Case,
    FunctionTarget,
    NotIdempotent,
    RequiredTests,
    suite,
)
from tests.testing_plugin import good
from tests.testing_plugin.broken import BROKEN
from tests.testing_plugin.good import ALICE, BOB, Provider
from tests.testing_plugin.test_reports import TELLING

shop = Provider()
app = good.fastapi_app(AsyncEngine.connect("memory://"), shop, effects="external")
payments = Case(
    request="POST /payments", json={"amount": 1250}, headers=ALICE, other_caller=BOB, effects=lambda: len(shop.charges)
)

TestPayments = suite(app=app, operations=[payments])


class TestOptional(RequiredTests):
    """The key is optional and there is one caller, both as declared: no test is left out for that."""

    operations = (Case(request="POST /payments", json={"amount": 1}, effects=shop.charges),)

    @classmethod
    def make(cls) -> Any:
        return good.starlette_app(AsyncEngine.connect("memory://"), shop)


engine = Engine.connect("memory://")
engine.open()


def test_a_function_without_pytest() -> None:
    provider = Provider()
    policy = Policy(effects="idempotent")
    target = FunctionTarget(good.function(engine, provider, policy), engine=engine, policy=policy)
    case = Case(arguments={"amount": 5}, other_caller={"caller": "bob"}, effects=provider.charges)
    made = suite(app=target, operations=[case])
    assert [test.run().held for test in made.checks()] == [(name,) for name in REQUIRED]


def test_the_names_are_those_of_the_requirement() -> None:
    assert REQUIRED == (
        "missing_key_refused",
        "invalid_key_refused",
        "first_request_runs",
        "same_key_and_payload_replays",
        "other_payload_refused",
        "concurrent_same_key_runs_once",
        "timeout_then_retry_gives_the_final_result",
        "failure_before_the_effect",
        "failure_after_the_effect",
        "expired_key",
        "no_replay_across_callers",
        "stored_answer_never_reaches_the_wrong_caller",
        "event_identity_stable_over_replay",
        "bulk_retry_does_not_rerun_finished_items",
    )


def test_each_required_check_has_its_reason() -> None:
    for test in TestPayments.checks():
        assert test.why.endswith(".")
        assert len(test.why.split()) > 15
        assert getattr(TestPayments, f"test_{test.name}").__doc__ == test.why
        assert (test.operation, test.case) == ("POST /payments", payments)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_application_fails_the_right_test(name: str) -> None:
    provider = Provider()
    case = Case(request="POST /payments", json={"amount": 5}, headers=ALICE, other_caller=BOB, effects=provider.charges)
    made = suite(app=BROKEN[name](AsyncEngine.connect("memory://"), provider), operations=[case])
    failed = []
    for test in made.checks():
        try:
            test.run()
        except (NotIdempotent, CannotRun):
            failed.append(test.name)
    assert TELLING[name] in failed


def test_nothing_is_left_out_silently() -> None:
    """What a test has not been given is an error of that test, with its remedy."""
    provider = Provider()
    case = Case(request="POST /payments", json={"amount": 5}, headers=ALICE, effects=provider.charges)
    made = suite(app=good.fastapi_app(AsyncEngine.connect("memory://"), provider), operations=[case])
    refused = {}
    for test in made.checks():
        try:
            test.run()
        except CannotRun as error:
            refused[test.name] = error.remedy
    assert list(refused) == ["no_replay_across_callers", "stored_answer_never_reaches_the_wrong_caller"]
    assert all("other_caller=" in remedy for remedy in refused.values())


def test_an_unprotected_function_cannot_be_crash_tested() -> None:
    provider = Provider()
    case = Case(request="POST /payments", json={"amount": 5}, headers=ALICE, effects=provider.charges)
    made = suite(app=BROKEN["no_semel"](AsyncEngine.connect("memory://"), provider), operations=[case])
    with pytest.raises(CannotRun, match="no Semel was found in the application"):
        made.make_test("failure_before_the_effect", case).run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operations": []}, "one Case for each operation"),
        ({"operations": [payments, payments]}, "a unique name: POST /payments, POST /payments"),
        ({"app": None}, "app= or make_app="),
        ({"make_app": lambda: app}, "app= or make_app="),
        ({"app": "http://127.0.0.1:1"}, "use assert_idempotent with the URL"),
    ],
)
def test_an_invalid_suite_is_refused(options: dict[str, object], message: str) -> None:
    given = {"app": app, "operations": [payments], **options}
    with pytest.raises(ConfigurationError, match=message):
        suite(**given)  # type: ignore[arg-type]


def test_a_target_must_be_made() -> None:
    with pytest.raises(ConfigurationError, match="or override make"):
        RequiredTests.make()
