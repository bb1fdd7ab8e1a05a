"""Policies that cannot be kept are refused when they are made, with the option and the remedy in the message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest

from semel.core.model import AfterExpiry, Effects, Scope, State
from semel.errors import ConfigurationError, PolicyError
from semel.keys import KeyFormat
from semel.policy import NEVER_REPLAYED, REPLAY_HEADERS, Command, Policy
from semel.recipe import Recipe

NAN, ENDLESS = float("nan"), float("inf")

IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"lease_seconds": 0}, "lease_seconds must be at least 1 second, so that it can be renewed in time; it is 0"),
    ({"lease_seconds": 0.99}, "lease_seconds must be at least 1 second"),
    ({"lease_seconds": -1}, "lease_seconds must be more than 0 seconds; it is -1"),
    ({"lease_seconds": NAN}, "lease_seconds must be a number of seconds; it is nan"),
    ({"lease_seconds": ENDLESS}, "lease_seconds must be at most ten years"),
    ({"lease_seconds": "30"}, "lease_seconds must be a number of seconds; it is '30'"),
    ({"lease_seconds": True}, "lease_seconds must be a number of seconds; it is True"),
    ({"lease_seconds": None}, "lease_seconds is missing: it cannot be endless; give seconds"),
    ({"deadline_seconds": None}, "deadline_seconds is missing: it cannot be endless; give seconds"),
    ({"deadline_seconds": 0}, "deadline_seconds must be more than 0 seconds; it is 0"),
    ({"deadline_seconds": 29}, "deadline_seconds (29) must not be shorter than lease_seconds (30)"),
    ({"wait_seconds": -0.1}, "wait_seconds must be more than 0 seconds; it is -0.1"),
    ({"answer_seconds": 0}, "answer_seconds must be more than 0 seconds; it is 0"),
    ({"answer_seconds": 1e10}, "answer_seconds must be at most ten years; it is 10000000000 seconds"),
    ({"tombstone_seconds": 60}, "tombstone_seconds (60) must not be shorter than answer_seconds (86400)"),
    (
        {"answer_seconds": 2_592_001.5, "tombstone_seconds": 2_592_000.0},
        "tombstone_seconds (2592000) must not be shorter than answer_seconds (2592001.5)",
    ),
    (
        {"answer_seconds": 31 * 86_400.0},
        "tombstone_seconds (2592000) must not be shorter than answer_seconds (2678400)",
    ),
    ({"answer_seconds": 10**400}, "answer_seconds must be at most ten years; it is 1e+300 seconds"),
    ({"answer_seconds": "a day"}, "answer_seconds must be a number of seconds; it is 'a day'"),
    ({"dedup_for_seconds": 0}, "dedup_for_seconds must be more than 0 seconds; it is 0"),
    ({"effects": "extern"}, "effects must be 'atomic', 'idempotent' or 'external'; it is 'extern'"),
    ({"effects": None}, "effects must be 'atomic', 'idempotent' or 'external'; it is None"),
    ({"key": "maybe"}, "key must be 'required' or 'optional'; it is 'maybe'"),
    ({"after_expiry": "again"}, "after_expiry must be 'refuse' or 'new'; it is 'again'"),
    ({"on_error": "retry"}, "on_error must be 'unknown' or 'replay'; it is 'retry'"),
    ({"replay": "all"}, "replay must be 'definite' or '2xx'; it is 'all'"),
    ({"on_unprotected": "ignore"}, "on_unprotected must be 'refuse' or 'mark'; it is 'ignore'"),
    ({"attempts_max": 0}, "attempts_max must be a whole number of at least 1; it is 0"),
    ({"attempts_max": 1.5}, "attempts_max must be a whole number of at least 1; it is 1.5"),
    ({"attempts_max": True}, "attempts_max must be a whole number of at least 1; it is True"),
    ({"body_bytes_max": 0}, "body_bytes_max must be a whole number of at least 1; it is 0"),
    ({"answer_bytes_max": -1}, "answer_bytes_max must be a whole number of at least 1; it is -1"),
    ({"definite_5xx": frozenset({404})}, "definite_5xx takes statuses from 500 to 599; it has 404"),
    ({"definite_5xx": frozenset({"500"})}, "definite_5xx takes statuses from 500 to 599; it has '500'"),
    ({"replay_headers": frozenset({"Set-Cookie"})}, "replay_headers must not name 'Set-Cookie': it is never stored"),
    ({"replay_headers": frozenset({"größe"})}, "replay_headers must not name 'größe'"),
    ({"replay_headers": frozenset({""})}, "replay_headers must not name '': it is not a header name"),
    ({"replay_headers": frozenset({"x total"})}, "replay_headers must not name 'x total'"),
    ({"replay_headers": frozenset({7})}, "replay_headers must not name 7"),
    (
        {"replay_headers": "x-total"},
        "replay_headers must be a set of header names, such as {'x-total'}; it is 'x-total'",
    ),
    ({"replay_headers": None}, "replay_headers must be a set of header names"),
    ({"not_run": {200}}, "not_run takes statuses from 400 to 599; it has 200"),
    ({"not_run": {503}, "definite_5xx": {503}}, "503 is in not_run and in definite_5xx"),
    ({"not_run": 429}, "not_run must be a set of statuses, such as {401, 403, 429}; it is 429"),
    ({"definite_5xx": 503}, "definite_5xx must be a set of statuses, such as {501}; it is 503"),
    ({"definite_5xx": None}, "definite_5xx must be a set of statuses"),
    ({"key_format": "uuid"}, "key_format must be a KeyFormat, such as KeyFormat(uuid=True) (from semel import KeyForm"),
    ({"key_format": KeyFormat}, "key_format must be a KeyFormat"),
    (
        {"fingerprint": "v1"},
        "the part of the body that counts, or a named function; it is 'v1'",
    ),
    ({"fingerprint": None}, "fingerprint must be a Recipe"),
    ({"fingerprints_known": Recipe()}, "fingerprints_known must be a tuple of Recipes, such as (Recipe(),)"),
    (
        {"fingerprints_known": ("1.abc",)},
        "fingerprints_known must be a tuple of Recipes, such as (Recipe(),); it has '1",
    ),
    ({"marks_effects": "no"}, "marks_effects must be True or False; it is 'no'"),
    ({"marks_effects": 1}, "marks_effects must be True or False; it is 1"),
    (
        {"nothing_happened": ConnectionError},
        "nothing_happened must be a tuple of exception types, such as (ConnectionRefusedError,); it is ConnectionError",
    ),
    ({"nothing_happened": None}, "nothing_happened must be a tuple of exception types"),
    ({"nothing_happened": "TimeoutError"}, "nothing_happened must be a tuple of exception types"),
    ({"nothing_happened": (Exception,)}, "nothing_happened must not hold Exception: it would prove nothing"),
    ({"nothing_happened": (BaseException,)}, "nothing_happened must not hold BaseException"),
    ({"nothing_happened": ("TimeoutError",)}, "nothing_happened takes exception types; it has 'TimeoutError'"),
    ({"nothing_happened": (int,)}, "nothing_happened takes exception types"),
    ({"on_error": "replay", "effects": "atomic"}, "on_error='replay' is for effects='external'"),
    ({"on_error": "replay", "effects": "idempotent"}, "idempotent errors run again"),
    ({"marks_effects": True, "effects": "idempotent"}, "marks_effects is for effects='external'"),
    ({"on_unprotected": "mark", "effects": "atomic"}, "on_unprotected='mark' is impossible with effects='atomic'"),
]


@pytest.mark.parametrize(("options", "message"), IMPOSSIBLE, ids=lambda value: str(value)[:40])
def test_an_impossible_policy_is_refused(options: Mapping[str, Any], message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy(**options)
    assert message in str(caught.value)
    assert isinstance(caught.value, ConfigurationError)


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("lease_second", "did you mean 'lease_seconds'?"),
        ("Effects", "did you mean 'effects'?"),
        ("tombstone", "did you mean 'tombstone_seconds'?"),
        ("terms", "did you mean 'steps'?"),  # made by the policy, not given to it
        ("xyzzy", "known options: effects, key,"),
    ],
)
def test_an_unknown_option_is_refused_with_a_suggestion(option: str, hint: str) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy.of(**{option: 1})
    assert str(caught.value).startswith(f"unknown option {option!r}; ")
    assert hint in str(caught.value)


def test_the_defaults_are_those_of_the_design() -> None:
    terms = Policy().terms
    assert terms.effects is Effects.EXTERNAL
    assert (terms.lease_us, terms.deadline_us) == (30_000_000, 300_000_000)
    assert (terms.answer_us, terms.tombstone_us) == (86_400_000_000, 30 * 86_400_000_000)
    assert (terms.after_expiry, terms.starts) == (AfterExpiry.REFUSE, State.PROCESSING)
    assert terms.dedup_us < 86_400_000_000  # less than the 24 hours after which providers prune
    assert Policy().wait_seconds == 2


@pytest.mark.parametrize("given", ["atomic", "ATOMIC", Effects.ATOMIC])
def test_effects_have_one_meaning_in_every_spelling(given: Any) -> None:
    assert Policy(effects=given).effects is Effects.ATOMIC
    assert Policy.of(effects=given).terms.effects is Effects.ATOMIC


@pytest.mark.parametrize("options", [{"wait_seconds": 0}, {"lease_seconds": 1, "deadline_seconds": 1}])
def test_the_bounds_of_options_are_allowed(options: Mapping[str, Any]) -> None:
    assert Policy(**options).terms.lease_us >= 1_000_000


def test_headers_are_compared_without_case_and_the_never_list_is_final() -> None:
    policy = Policy(replay_headers=frozenset({"X-Request-Cost"}))
    assert policy.allowed_headers == REPLAY_HEADERS | {b"x-request-cost"}
    assert not REPLAY_HEADERS & NEVER_REPLAYED
    for name in NEVER_REPLAYED:
        with pytest.raises(PolicyError):
            Policy(replay_headers=frozenset({name.decode().title()}))


@pytest.mark.parametrize("name", [each.name for each in fields(Policy) if each.init])
@pytest.mark.parametrize(
    "value", [object(), b"x", [None], {"a": 1}, 1 + 2j, lambda: None, int], ids=lambda value: type(value).__name__
)
def test_no_option_takes_a_value_of_another_kind(name: str, value: Any) -> None:
    with pytest.raises(PolicyError, match=name):
        Policy(**{name: value})


def test_collections_of_every_kind_make_the_same_policy() -> None:
    one = Policy.of(definite_5xx={503}, replay_headers=["X-Total"], nothing_happened=[OSError], fingerprints_known=[])
    two = Policy.of(definite_5xx=(503,), replay_headers={"X-Total"}, nothing_happened=(OSError,))
    assert one == two
    assert hash(one) == hash(two)


def test_a_policy_does_not_change() -> None:
    with pytest.raises(AttributeError):
        Policy().lease_seconds = 5  # type: ignore[misc]
    assert Policy(lease_seconds=5) == Policy(lease_seconds=5) != Policy()


@pytest.mark.parametrize("part", ["tenant", "caller", "operation"])
@pytest.mark.parametrize("value", ["", None, 7])
def test_a_scope_has_no_empty_part(part: str, value: Any) -> None:
    scope = Scope("acme", "alice", "pay")._replace(**{part: value})
    with pytest.raises(PolicyError, match=f"the scope's {part} must be a non-empty text"):
        Command(scope, "k", bytes(32), Recipe().id, Policy())
