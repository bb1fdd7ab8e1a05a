"""What is wrong on purpose is found, and the report is the text that a colleague would have written.

The reports are beside this file as they are printed, so that a change of their words is noticed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from semel import AsyncEngine
from semel.testing.idempotent import NotIdempotent, Report, assert_idempotent, check_idempotent
from tests.testing_plugin.broken import BROKEN
from tests.testing_plugin.good import ALICE, BOB, Provider

REPORTS = Path(__file__).parent / "reports"

# The check that tells each mistake; what else fails is a consequence.
TELLING = {
    "no_semel": "same_key_and_payload_replays",
    "outside_of_authentication": "stored_answer_never_reaches_the_wrong_caller",
    "key_made_by_the_server": "same_key_and_payload_replays",
    "effect_before_the_claim": "failure_before_the_effect",
    "payload_that_changes": "same_key_and_payload_replays",
    "answer_with_a_cookie": "same_key_and_payload_replays",
    "looks_first_and_writes_later": "concurrent_same_key_runs_once",
    "cookie_in_the_cache": "same_key_and_payload_replays",
    "answer_made_anew": "same_key_and_payload_replays",
    "merges_by_content": "first_request_runs",
    "idempotent_in_name_only": "failure_after_the_effect",
    "one_caller_for_all": "no_replay_across_callers",
}


def report_of(name: str) -> Report:
    provider = Provider()
    app = BROKEN[name](AsyncEngine.connect("memory://"), provider)
    return check_idempotent(
        app, "POST /payments", json={"amount": 1250}, headers=ALICE, other_caller=BOB, effects=provider.charges
    )


@pytest.mark.parametrize("name", BROKEN)
def test_the_report_of(name: str) -> None:
    report = report_of(name)
    assert TELLING[name] in [finding.check for finding in report.findings]
    assert report.text() == (REPORTS / f"{name}.txt").read_text("utf-8").rstrip("\n")


@pytest.mark.parametrize("name", BROKEN)
def test_the_report_is_the_same_every_time(name: str) -> None:
    assert report_of(name).text() == report_of(name).text()


def test_every_check_is_failed_by_a_broken_application() -> None:
    from semel.testing.required import REQUIRED

    seen = {finding.check for name in BROKEN for finding in report_of(name).findings}
    needing_a_database = {"event_identity_stable_over_replay", "bulk_retry_does_not_rerun_finished_items"}
    assert seen == set(REQUIRED) - needing_a_database  # those in tests/required/test_events.py and test_bulk.py


def test_all_findings_are_raised_at_once() -> None:
    provider = Provider()
    app = BROKEN["no_semel"](AsyncEngine.connect("memory://"), provider)
    with pytest.raises(NotIdempotent, match="6 findings") as raised:
        assert_idempotent(
            app, "POST /payments", json={"amount": 1}, headers=ALICE, other_caller=BOB, effects=provider.charges
        )
    assert str(raised.value) == raised.value.report.text()
    assert len(raised.value.report.findings) == 6
